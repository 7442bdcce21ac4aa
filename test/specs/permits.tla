------------------------------ MODULE permits ------------------------------
(***************************************************************************)
(* The semaphore on the queue: how a number of permits goes to calls of    *)
(* several processes, in the order in which they came. README.md says what *)
(* is modelled and what is not. handoff.tla has the lock, and what both   *)
(* have in common in more detail.                                          *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Calls,        \* the calls: 10 times the number of the process, and the number of the call in it
  Holders,      \* those that have their permits in the beginning
  Large,        \* those that ask for two permits
  Number,       \* how many permits there are
  Changes,      \* the numbers to one of which it may be changed, once
  Lease,        \* the lease of a hold, in ticks
  Provisional,  \* the lease of a grant until the grantee lengthens it
  Renews,       \* whether holders lengthen their leases
  Tries,        \* whether calls try without a ticket first
  Faults,       \* what may go wrong or stop a call, see Fault
  MaxFaults,    \* how often
  MaxLate,      \* commands of abandoned calls that are on their way at a time
  Clock,        \* whether time passes
  Slow,         \* how often time passes while something is under way that takes no time by itself
  MaxIdle,      \* for how many ticks permits that nobody relies on may be kept from a live ticket
  Without       \* what a mutant lacks: {} or the name of one guard

VARIABLES
  db,       \* what the server has, see Init
  proc,     \* a process is "up", "stopped", "halted" or "dead"
  link,     \* its connection for messages works, so the server counts it
  pc,       \* where a call is: idle, try, wait, sure, hold, done; as in handoff.tla
  cmd,      \* its command that is under way, or the reply
  sent,     \* how long ago that was sent
  has,      \* a reply has shown that its ticket is in the queue
  base,     \* how long ago the last such command was sent
  until,    \* for how long it may rely on its permits
  timer,    \* when it looks again
  box,      \* messages for it: g: granted; n: look when a provisional lease is over; d: look
  removal,    \* calls that are over, whose value and ticket are to be removed until that is confirmed
  late,     \* commands of abandoned calls; they may be executed at any time
  changed,  \* the number was changed
  faults,   \* how many faults there were
  slow,     \* how often time passed while something was under way
  idle      \* ghost: for how many ticks permits have been kept from a live ticket

call == <<pc, cmd, sent, has, base, until, timer>>
world == <<proc, link, changed, faults>>
vars == <<db, world, call, box, removal, late, slow, idle>>

Procs == {c \div 10 : c \in Calls}
Proc(c) == c \div 10
Of(p) == {c \in Calls : Proc(c) = p}
Want(c) == IF c \in Large THEN 2 ELSE 1
Total(S) == Cardinality(S) + Cardinality(S \cap Large)
None == [op |-> "none"]
Half == (Provisional + 1) \div 2
Lacks(guard) == guard \in Without
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Max(S) == CHOOSE x \in S : \A y \in S : x >= y
Less(x) == Max({0, x - 1})
First(D, S) == CHOOSE c \in S : \A d \in S : D.place[c] <= D.place[d]

-----------------------------------------------------------------------------
(* What the server does. A step is [db, g, n, d]: its new state, and the calls that are told.                         *)

Members(D) == {c \in Calls : D.ends[c] >= 0}
Used(D) == Cardinality(Members(D)) + Cardinality(D.weights)
Fits(D, k) == Used(D) + k <= D.limit
Subscribed == {p \in Procs : link[p]}
Left(D) == IF Members(D) = {} THEN Lease ELSE Min({D.ends[c] : c \in Members(D)})

\* take: of so long; granted says that it is by another, and short until it is lengthened.
Take(D, c, length, granted) ==
  [D EXCEPT !.ends[c] = IF granted /\ Lacks("member") THEN @ ELSE length,
            !.weights = IF c \in Large THEN @ \cup {c} ELSE @,
            !.short = IF granted THEN @ \cup {c} ELSE @ \ {c},
            !.queue = IF granted /\ Lacks("ticket") THEN @ ELSE @ \ {c}]

Drop(D, S) == [D EXCEPT !.ends = [c \in Calls |-> IF c \in S THEN -1 ELSE @[c]],
                        !.weights = IF Lacks("weight") THEN @ ELSE @ \ S,
                        !.short = @ \ S]

\* count and passOver, in permits.lua, by a call or 0: leases that are over go, and the tickets of a process that has not
\* lengthened one.
Count(D, by) ==
  LET over == {c \in Calls : D.ends[c] = 0}
      still == {Proc(c) : c \in over \cap D.short} \ {by \div 10}
      passed == IF Lacks("still") THEN {} ELSE {c \in D.queue : Proc(c) \in still}
  IN [db |-> [Drop(D, over) EXCEPT !.queue = @ \ passed], g |-> {}, n |-> {}, d |-> passed]

\* heads: the tickets in front of the first that is served, or that is mine. Nobody listens for them, or they ask for too many.
Gone(D, mine) ==
  LET there(c) == c = mine \/ (Proc(c) \in Subscribed /\ (Want(c) <= D.limit \/ Lacks("toomany")))
      alive == {c \in D.queue : there(c)}
  IN {c \in D.queue : \A a \in alive : D.place[c] < D.place[a]}

\* grantNext: from the first ticket on, up to mine. The first one of another process is told to look.
RECURSIVE Serve(_, _)
Serve(x, mine) ==
  LET gone == Gone(x.db, mine)
      D == [x.db EXCEPT !.queue = @ \ gone]
      y == [x EXCEPT !.db = D, !.d = @ \cup {c \in gone : Proc(c) \in Subscribed}]
      able == {c \in D.queue : Fits(D, IF Lacks("several") THEN 1 ELSE Want(c))}
      c == First(D, IF Lacks("first") /\ able # {} THEN able ELSE D.queue)
      rest == {a \in D.queue : Proc(a) # Proc(c) /\ Proc(a) \in Subscribed}
  IN IF D.queue = {} THEN y
     ELSE IF c = mine \/ c \notin able THEN y
     ELSE Serve([db |-> Take(D, c, Provisional, TRUE), d |-> y.d, g |-> y.g \cup {c},
                 n |-> IF rest = {} \/ Lacks("another") THEN y.n ELSE y.n \cup {First(D, rest)}], mine)

Reply(x, to, left, rank) == [x |-> x, re |-> [op |-> "reply", to |-> to, left |-> left, rank |-> rank]]

\* When c is to look again: when a lease is over, also the one under which the first ticket keeps free permits from it.
Until(D, c) == IF Fits(D, Want(c)) /\ First(D, D.queue) \in D.asked THEN Min({Left(D), D.keeps}) ELSE Left(D)

Queued(x, c) == Reply(x, "queued", Until(x.db, c), Cardinality({a \in x.db.queue : x.db.place[a] < x.db.place[c]}))

\* obtain.lua, as a try: it overtakes no ticket whose process is there.
RunTry(D, c) ==
  LET x == Count(D, c)
      y == [x EXCEPT !.db.queue = @ \ Gone(x.db, 0)]
  IN CASE x.db.ends[c] > 0 -> Reply([x EXCEPT !.db = Take(@, c, Lease, FALSE)], "granted", 0, 0)
       [] x.db.ends[c] < 0 /\ Want(c) > D.limit -> Reply(x, "wrong", 0, 0)
       [] OTHER -> IF ~Fits(x.db, Want(c)) THEN Reply(x, "taken", 0, 0)
                   ELSE IF y.db.queue # {} /\ ~Lacks("passing") THEN Reply(y, "taken", 0, 0)
                   ELSE Reply([y EXCEPT !.db = Take(@, c, Lease, FALSE)], "granted", 0, 0)

\* granted, in permits.lua: the first ticket keeps permits from c. Its process is to look, or has not for too long.
Keeps(x, c) ==
  LET D == [x.db EXCEPT !.queue = @ \ Gone(x.db, c)]
      f == First(D, D.queue)
      passed == {t \in D.queue : Proc(t) = Proc(f)}
  IN IF Fits(D, Want(f)) \/ Proc(f) = Proc(c) THEN x
     ELSE IF f \in D.asked /\ D.keeps = 0 /\ ~Lacks("reserve") THEN [x EXCEPT !.db.queue = @ \ passed, !.d = @ \cup passed]
     ELSE IF D.keeps > 0 THEN x
     ELSE [x EXCEPT !.db.asked = @ \cup {f}, !.db.keeps = Provisional, !.d = @ \cup {f}]

\* obtain_queued.lua, for a ticket that is in the queue.
Ask(x, c) ==
  IF ~Fits(x.db, Want(c)) THEN Queued(x, c)
  ELSE LET y == Serve(Keeps(x, c), c)
       IN IF Fits(y.db, Want(c)) /\ (First(y.db, y.db.queue) = c \/ Lacks("first"))
          THEN Reply(Serve([y EXCEPT !.db = Take(@, c, Lease, FALSE)], 0), "granted", 0, 0)
          ELSE Queued(y, c)

\* To queue: a ticket comes last, or where it was. To look: it must be there.
RunQueued(D, c, enqueue) ==
  LET z == Count(D, c)
      x == IF Lacks("looks") THEN z ELSE [z EXCEPT !.db.asked = @ \ {c}]
      y == [x EXCEPT !.db.queue = @ \cup {c},
                     !.db.place[c] = IF @ > 0 THEN @ ELSE 1 + Max({x.db.place[a] : a \in Calls})]
  IN CASE x.db.ends[c] > 0 -> Reply([x EXCEPT !.db.queue = @ \ {c}], "owner", x.db.ends[c], 0)
       [] x.db.ends[c] < 0 /\ Want(c) > D.limit -> Reply(x, "wrong", 0, 0)
       [] OTHER -> IF enqueue THEN Ask(y, c) ELSE IF c \in x.db.queue THEN Ask(x, c) ELSE Reply(x, "missing", 0, 0)

\* renew.lua
RunRenew(D, c) ==
  LET x == [db |-> D, g |-> {}, n |-> {}, d |-> {}]
  IN IF D.ends[c] > 0 \/ Lacks("revive")
     THEN Reply([x EXCEPT !.db.ends[c] = Lease, !.db.short = @ \ {c}], "renewed", 0, 0) ELSE Reply(x, "gone", 0, 0)

Run(r) == CASE r.op = "try" -> RunTry(db, r.c)
            [] r.op = "enqueue" -> RunQueued(db, r.c, TRUE)
            [] r.op = "look" -> RunQueued(db, r.c, FALSE)
            [] r.op = "renew" -> RunRenew(db, r.c)

\* release.lua, with the ticket of a call that leaves: whoever fits now is served, also if only the ticket was in the way.
RunRelease(D, c) ==
  LET had == D.ends[c] >= 0
      x == Count(IF Lacks("drop") THEN D ELSE Drop(D, {c}), c)
      y == [x EXCEPT !.db.queue = @ \ {c}]
  IN IF Lacks("serve") \/ (~had /\ (c \notin D.queue \/ Lacks("leave"))) THEN y ELSE Serve(y, 0)

\* The server's new state, and the messages. They are lost where the connection does not work.
Apply(x) ==
  /\ db' = x.db
  /\ box' = [c \in Calls |-> IF ~link[Proc(c)] THEN box[c]
                             ELSE box[c] \cup (IF c \in x.g THEN {"g"} ELSE {}) \cup (IF c \in x.n THEN {"n"} ELSE {})
                                         \cup (IF c \in x.d THEN {"d"} ELSE {})]

-----------------------------------------------------------------------------
(* Calls.                                                                   *)

Runs(c) == proc[Proc(c)] = "up"
InFlight(c) == cmd[c].op \notin {"none", "reply"}
Grants(r) == r.op \in {"try", "enqueue"}
Believes(c) == pc[c] = "hold" /\ until[c] > 0
Send(c, op) == cmd' = [cmd EXCEPT ![c] = [op |-> op, c |-> c]] /\ sent' = [sent EXCEPT ![c] = 0]
Idle(c) == cmd' = [cmd EXCEPT ![c] = None] /\ sent' = [sent EXCEPT ![c] = 0]
Fault(what) == what \in Faults /\ faults < MaxFaults /\ faults' = faults + 1

\* The command of a call that is given up may still be executed, or be lost.
Forget(c) == late' \in IF InFlight(c) /\ Cardinality(late) < MaxLate THEN {late, late \cup {cmd[c]}} ELSE {late}

\* The call is where it is in the next state, with this much of a lease, and without a ticket.
Now(c, state, length) ==
  /\ pc' = [pc EXCEPT ![c] = state]
  /\ until' = [until EXCEPT ![c] = length]
  /\ has' = [has EXCEPT ![c] = FALSE]
  /\ base' = [base EXCEPT ![c] = 0]
  /\ timer' = [timer EXCEPT ![c] = 0]

\* The call is over. What it has in Redis is removed by its value, see Sweep.
Over(c) == Now(c, "done", 0) /\ Idle(c) /\ removal' = IF Lacks("sweep") THEN removal ELSE removal \cup {c}

\* Calls of a process that ask for as much are alike: they come in the order of their numbers.
Begin(c) ==
  /\ pc[c] = "idle" /\ Runs(c) /\ link[Proc(c)]
  /\ \A d \in Of(Proc(c)) : d < c /\ Want(d) = Want(c) => pc[d] # "idle"
  /\ IF Tries THEN Now(c, "try", 0) /\ Send(c, "try") ELSE Now(c, "wait", 0) /\ Send(c, "enqueue")
  /\ UNCHANGED <<db, world, box, removal, late, slow, idle>>

\* acquisition.inQueue: it asks for a ticket, or looks after it. Messages that have come are read first.
Look(c) ==
  /\ pc[c] = "wait" /\ Runs(c) /\ cmd[c] = None /\ timer[c] = 0 /\ link[Proc(c)] /\ "g" \notin box[c]
  /\ Send(c, IF has[c] THEN "look" ELSE "enqueue")
  /\ box' = [box EXCEPT ![c] = {}]
  /\ UNCHANGED <<db, world, pc, has, base, until, timer, removal, late, slow, idle>>

\* acquisition.granted and found: with too little of the lease left it is lengthened first.
Granted(c, length) ==
  IF length >= Half THEN Now(c, "hold", length) /\ Idle(c) ELSE Now(c, "sure", 0) /\ Send(c, "renew")

Receive(c) ==
  /\ Runs(c) /\ box[c] # {} /\ cmd[c] = None
  /\ box' = [box EXCEPT ![c] = {}]
  /\ IF pc[c] = "wait" /\ "g" \in box[c]
     THEN Granted(c, Max({0, Provisional - (IF Lacks("base") THEN 0 ELSE base[c])})) /\ UNCHANGED removal
     ELSE /\ timer' = [timer EXCEPT ![c] = IF "d" \in box[c] THEN 0 ELSE Min({@, Provisional})]
          /\ removal' = IF pc[c] = "done" /\ "g" \in box[c] THEN removal \cup {c} ELSE removal   \* granted to nobody
          /\ UNCHANGED <<pc, cmd, sent, has, base, until>>
  /\ UNCHANGED <<db, world, late, slow, idle>>

Answered(c) ==
  LET to == cmd[c].to
      left == Max({0, cmd[c].left - sent[c]})
      full == Max({0, Lease - (IF Lacks("sent") THEN 0 ELSE sent[c])})
      anew == to = "taken" \/ (pc[c] = "wait" /\ to = "missing") \/ (pc[c] = "sure" /\ to = "gone")
  IN
  /\ cmd[c].op = "reply" /\ Runs(c)
  /\ box' = IF anew \/ to = "owner" THEN [box EXCEPT ![c] = {}] ELSE box   \* of a number that is over
  /\ CASE anew -> Now(c, "wait", 0) /\ Idle(c) /\ UNCHANGED removal
       [] to = "queued" ->
            /\ Idle(c)
            /\ has' = [has EXCEPT ![c] = TRUE]
            /\ base' = [base EXCEPT ![c] = sent[c]]
            /\ timer' = [timer EXCEPT ![c] = Max({0, cmd[c].left + cmd[c].rank - sent[c]})]
            /\ UNCHANGED <<pc, until, removal>>
       [] to = "owner" -> Granted(c, left) /\ UNCHANGED removal
       [] pc[c] # "hold" /\ to \in {"granted", "renewed"} /\ full > 0 -> Now(c, "hold", full) /\ Idle(c) /\ UNCHANGED removal
       [] pc[c] = "hold" ->                                \* what is over is not revived
            /\ Idle(c)
            /\ until' = [until EXCEPT ![c] = IF to = "renewed" /\ @ > 0 THEN Max({@, full}) ELSE 0]
            /\ UNCHANGED <<pc, has, base, timer, removal>>
       [] OTHER -> Over(c)
  /\ UNCHANGED <<db, world, late, slow, idle>>

Renew(c) ==
  /\ Renews /\ Believes(c) /\ Runs(c) /\ cmd[c] = None /\ until[c] <= Half
  /\ Send(c, "renew")
  /\ UNCHANGED <<db, world, pc, has, base, until, timer, box, removal, late, slow, idle>>

\* The end of a hold: it is released, or its lease is over.
Release(c) ==
  /\ pc[c] = "hold" /\ Runs(c)
  /\ Over(c) /\ Forget(c)
  /\ UNCHANGED <<db, world, box, slow, idle>>

\* A call gives up, at any point.
Cancel(c) ==
  /\ pc[c] \in {"try", "wait", "sure"} /\ Runs(c) /\ Fault("cancel")
  /\ Over(c) /\ Forget(c)
  /\ UNCHANGED <<db, proc, link, changed, box, slow, idle>>

\* The reply or the command is lost, or that is executed later. An attempt is given up; all else is asked again.
Break(c) ==
  /\ cmd[c] # None /\ Runs(c) /\ Fault("break")
  /\ IF pc[c] = "try" \/ (pc[c] = "wait" /\ ~has[c]) THEN Over(c) /\ Forget(c)
     ELSE /\ IF pc[c] = "sure" THEN Send(c, "renew") ELSE Idle(c)
          /\ IF pc[c] = "hold" THEN Forget(c) ELSE UNCHANGED late
          /\ UNCHANGED <<pc, has, base, until, timer, removal>>
  /\ UNCHANGED <<db, proc, link, changed, box, slow, idle>>

\* A removal by value, again until no grant can come any more.
Sweep(c) ==
  /\ c \in removal /\ Runs(c)
  /\ Apply(RunRelease(db, c))
  /\ removal' = IF ~Lacks("watch") /\ \E r \in late : r.c = c /\ Grants(r) THEN removal ELSE removal \ {c}
  /\ removal' # removal \/ db' # db
  /\ UNCHANGED <<world, call, late, slow, idle>>

Exec(c) ==
  /\ InFlight(c)
  /\ LET a == Run(cmd[c]) IN Apply(a.x) /\ cmd' = [cmd EXCEPT ![c] = a.re]
  /\ UNCHANGED <<world, pc, sent, has, base, until, timer, removal, late, slow, idle>>

ExecLate(r) ==
  /\ r \in late /\ late' = late \ {r}
  /\ Apply(Run(r).x)
  /\ UNCHANGED <<world, call, removal, slow, idle>>

\* SetPermits.
Change(n) ==
  /\ ~changed /\ changed' = TRUE
  /\ LET x == Count(db, 0) IN Apply(Serve([x EXCEPT !.db.limit = n], 0))
  /\ UNCHANGED <<proc, link, faults, call, removal, late, slow, idle>>

-----------------------------------------------------------------------------
(* Processes, and time.                                                     *)

\* The connection for messages breaks. When it is there again all calls look.
Cut(p) ==
  /\ link[p] /\ proc[p] = "up" /\ Fault("cut")
  /\ link' = [link EXCEPT ![p] = FALSE]
  /\ box' = [c \in Calls |-> IF Proc(c) = p THEN {} ELSE box[c]]
  /\ UNCHANGED <<db, proc, changed, call, removal, late, slow, idle>>
Connect(p) ==
  /\ ~link[p] /\ proc[p] = "up"
  /\ link' = [link EXCEPT ![p] = TRUE]
  /\ box' = [c \in Calls |-> IF Proc(c) = p /\ pc[c] = "wait" THEN {"d"} ELSE box[c]]
  /\ UNCHANGED <<db, proc, changed, faults, call, removal, late, slow, idle>>

\* A process stands still, for as long as it likes, or for ever while its calls wait. The server counts it.
Stop(p) ==
  /\ proc[p] = "up"
  /\ \/ Fault("stopped") /\ proc' = [proc EXCEPT ![p] = "stopped"]
     \/ Fault("halted") /\ proc' = [proc EXCEPT ![p] = "halted"] /\ \A c \in Of(p) : has[c] /\ cmd[c] = None /\ db.ends[c] < 0
  /\ UNCHANGED <<db, link, changed, call, box, removal, late, slow, idle>>
Resume(p) ==
  /\ proc[p] = "stopped"
  /\ proc' = [proc EXCEPT ![p] = "up"]
  /\ UNCHANGED <<db, link, changed, faults, call, box, removal, late, slow, idle>>

Crash(p) ==
  /\ proc[p] = "up" /\ Fault("crash")
  /\ proc' = [proc EXCEPT ![p] = "dead"]
  /\ link' = [link EXCEPT ![p] = FALSE]
  /\ LET keep(f, v) == [c \in Calls |-> IF Proc(c) = p THEN v ELSE f[c]]
     IN /\ pc' = keep(pc, "done") /\ cmd' = keep(cmd, None) /\ box' = keep(box, {}) /\ has' = keep(has, FALSE)
        /\ sent' = keep(sent, 0) /\ base' = keep(base, 0) /\ until' = keep(until, 0) /\ timer' = keep(timer, 0)
  /\ removal' = removal \ Of(p)
  /\ \E r \in {late} \cup {late \cup {cmd[c]} : c \in {x \in Of(p) : InFlight(x)}} : Cardinality(r) <= MaxLate /\ late' = r
  /\ UNCHANGED <<db, changed, slow, idle>>

Urgent(c) ==
  \/ InFlight(c)
  \/ /\ Runs(c)
     /\ \/ cmd[c] # None \/ box[c] # {} \/ c \in removal \/ ~link[Proc(c)]
        \/ pc[c] = "wait" /\ timer[c] = 0
        \/ pc[c] = "hold" /\ until[c] = 0

Live == {c \in db.queue : Runs(c) /\ link[Proc(c)] /\ pc[c] = "wait"}
Kept == Live # {} /\ Total({c \in Calls : Believes(c)}) + Want(First(db, Live)) <= db.limit

Passes == Clock /\ \E c \in Calls : db.ends[c] > 0 \/ until[c] > 0 \/ timer[c] > 0

Tick ==
  /\ Passes
  /\ IF late = {} /\ \A c \in Calls : ~Urgent(c) THEN UNCHANGED slow ELSE slow < Slow /\ slow' = slow + 1
  /\ db' = [db EXCEPT !.ends = [c \in Calls |-> IF @[c] > 0 THEN @[c] - 1 ELSE @[c]], !.keeps = Less(@)]
  /\ sent' = [c \in Calls |-> IF cmd[c] = None THEN 0 ELSE Min({sent[c] + 1, Lease})]
  /\ base' = [c \in Calls |-> IF has[c] THEN Min({base[c] + 1, Provisional}) ELSE 0]
  /\ until' = [c \in Calls |-> Less(until[c])]
  /\ timer' = [c \in Calls |-> Less(timer[c])]
  /\ idle' = IF MaxIdle > 0 /\ Kept THEN Min({idle + 1, MaxIdle + 1}) ELSE 0
  /\ UNCHANGED <<world, pc, cmd, has, box, removal, late>>

Init ==
  /\ db = [\* the sorted set: what the leases have left; 0: it is over; -1: no member
           ends |-> [c \in Calls |-> IF c \in Holders THEN Lease ELSE -1],
           weights |-> Holders \cap Large,  \* those of its members that say that a hold has two
           short |-> {},                    \* the holds whose lease is to be lengthened by who was granted it
           limit |-> Number,
           asked |-> {},                    \* the tickets whose processes are to show that they run, see Keeps
           keeps |-> 0,                     \* for how long the newest of these may keep permits
           queue |-> {}, place |-> [c \in Calls |-> 0]]   \* the tickets, and where they are or were
  /\ proc = [p \in Procs |-> "up"] /\ link = [p \in Procs |-> TRUE]
  /\ pc = [c \in Calls |-> IF c \in Holders THEN "hold" ELSE "idle"] /\ cmd = [c \in Calls |-> None] /\ sent = [c \in Calls |-> 0]
  /\ has = [c \in Calls |-> FALSE] /\ base = [c \in Calls |-> 0] /\ until = [c \in Calls |-> IF c \in Holders THEN Lease ELSE 0]
  /\ timer = [c \in Calls |-> 0] /\ box = [c \in Calls |-> {}]
  /\ removal = {} /\ late = {} /\ changed = FALSE /\ faults = 0 /\ slow = 0 /\ idle = 0

Next ==
  \/ \E c \in Calls : Begin(c) \/ Look(c) \/ Receive(c) \/ Answered(c) \/ Renew(c) \/ Release(c) \/ Cancel(c) \/ Break(c)
                      \/ Sweep(c) \/ Exec(c)
  \/ \E p \in Procs : Cut(p) \/ Connect(p) \/ Stop(p) \/ Resume(p) \/ Crash(p)
  \/ \E r \in late : ExecLate(r)
  \/ \E n \in Changes : Change(n)
  \/ Tick

Spec == Init /\ [][Next]_vars

\* Everything that is under way arrives, time passes, and holds are released. (TLC would take long to find out whether Next
\* is enabled.)
Moves == late # {} \/ Passes \/ \E c \in Calls : Urgent(c)
Fair == Spec /\ ([]<>~Moves \/ []<><<vars' # vars>>_vars) /\ []<>(\A c \in Calls : pc[c] # "hold" \/ ~Runs(c))

-----------------------------------------------------------------------------
(* What must hold.                                                          *)

\* Never more inside than there are, by the clocks of those inside. Lowering puts nobody out.
Never == Total({c \in Calls : Believes(c)}) <= Max({Number} \cup IF changed THEN Changes ELSE {})

\* Who believes has its permits, for at least as long.
Held == \A c \in Calls : Believes(c) => db.ends[c] >= until[c] /\ (c \in Large => c \in db.weights)

\* Members and weights agree.
Weight == db.weights = Members(db) \cap Large

\* No hold has a ticket.
Owner == db.queue \cap Members(db) = {}

\* Permits that their process does not want are about to be released by it.
Wanted == \A c \in Members(db) : pc[c] = "done" /\ Runs(c) => c \in removal \/ "g" \in box[c]

\* Who gets permits while others have theirs gets no more than there are then.
In(D) == {c \in Calls : D.ends[c] > 0}
Room == [][In(db') \ In(db) # {} => Total(In(db')) <= db'.limit]_vars

\* Nobody gets permits past an earlier ticket, but one whose process is gone or stands still, or that asks for too many.
Order == [][\A c \in In(db') \ In(db), t \in db.queue :
              \/ t \in In(db') \/ t = c \/ t \in removal   \* served, too; or it leaves
              \/ c \in db.queue /\ db.place[c] < db.place[t]
              \/ db.place[c] > 0 /\ db.place[c] < db.place[t]
              \/ Proc(t) \notin Subscribed \/ Want(t) > db'.limit
              \/ \E m \in db.short : db.ends[m] = 0 /\ Proc(m) = Proc(t)
              \/ ~Runs(t) /\ db.keeps = 0 /\ \E m \in db.asked : Proc(m) = Proc(t)]_vars

\* Permits that nobody relies on are not kept from a live ticket for longer.
NotLost == MaxIdle > 0 => idle <= MaxIdle

\* Who waits gets its permits, or gives up: in the end nobody waits. (There are so many calls, and each comes once.)
Served == <>[](\A c \in Calls : pc[c] \notin {"wait", "sure"} \/ ~Runs(c))

\* No waiter sleeps while the first ticket fits: something is under way. (Not where a process may be gone.)
NoSleep == db.queue # {} /\ Fits(db, Want(First(db, db.queue))) => late # {} \/ \E c \in Calls : Urgent(c)
=============================================================================
