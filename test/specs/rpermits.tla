----------------------------- MODULE rpermits -----------------------------
(***************************************************************************)
(* The semaphore in Redisson's format, on the queue: calls of this library *)
(* beside threads of a JVM, whose clock differs. README.md says what is    *)
(* modelled. permits.tla has what does not depend on the format: commands  *)
(* and replies that are under way, late ones, and processes that stop.     *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Calls,        \* of this library: 10 times the number of the process, and the number of the call in it
  Java,         \* threads of a JVM
  Holders,      \* those that have their permits in the beginning
  Large,        \* those that ask for two permits; threads release them in a list
  Number,       \* how many permits there are
  Changes,      \* the numbers to one of which it may be changed, once
  Lease,        \* the lease of a hold, in ticks
  Provisional,  \* the lease of a grant until the grantee lengthens it
  Margin,       \* a third of a lease
  Clocks,       \* the JVM's clock may be "right", or "ahead" of the server's or "behind" it, by a third of a lease
  Endless,      \* whether the JVM's permits have no lease
  Renews,       \* whether calls lengthen their leases
  Bounds,       \* whether a renewal may be a short one, which ends at a bound
  Windows,      \* whether a release may leave a permit free for those without a ticket
  Faults,       \* what may go wrong or stop a call, see Fault
  MaxFaults,    \* how often
  Clock,        \* whether time passes
  Slow,         \* how often time passes while something is under way that takes no time by itself
  MaxIdle,      \* for how many ticks permits that nobody relies on may be kept from a live ticket; a dead holder has its lease
  Without       \* what a mutant lacks: {} or the name of one guard

VARIABLES
  db,       \* what the server has, see Init
  skew,     \* by how much the JVM's clock is ahead
  dead,     \* processes that crashed
  pc,       \* where a call or thread is: idle, wait, hold, leave, done, dead
  base,     \* how long ago a command was sent whose reply showed the call's ticket in the queue
  until,    \* for how long it may rely on its permits
  timer,    \* when it looks again
  arm,      \* a call is about to have the server report changes of the counter
  box,      \* messages for it: g: granted; n: it is the next; d: look
  latch,    \* how many of the JVM's sleepers are to wake
  changed,  \* the number was changed
  faults,   \* how many faults there were
  slow,     \* how often time passed while something was under way
  idle      \* ghost: for how many ticks permits have been kept from a live ticket, since somebody got some

world == <<skew, dead, changed, faults>>
call == <<pc, base, until, timer, arm>>
vars == <<db, world, call, box, latch, slow, idle>>

Who == Calls \cup Java
Forever == 99                   \* a time that does not come
Proc(c) == c \div 10
Want(w) == IF w \in Large THEN 2 ELSE 1
Total(S) == Cardinality(S) + Cardinality(S \cap Large)
Half == (Provisional + 1) \div 2
Lacks(guard) == guard \in Without
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Max(S) == CHOOSE x \in S : \A y \in S : x >= y
Less(x) == IF x = Forever THEN x ELSE Max({0, x - 1})
First(D, S) == CHOOSE c \in S : \A d \in S : D.place[c] <= D.place[d]

-----------------------------------------------------------------------------
(* What the scripts of this library do. A step is [db, g, n, d, pub]: the new state, the calls that are told, and the number *)
(* that is published.                                                                                                        *)

Members(D) == {w \in Who : D.held[w] > 0}
Parts(D, S) == Cardinality({w \in S : D.held[w] > 0}) + Cardinality({w \in S : D.held[w] > 1})
Fits(D, k) == D.free >= k
There(c) == Proc(c) \notin dead
Step(D) == [db |-> D, g |-> {}, n |-> {}, d |-> {}, pub |-> 0]
Out(D, S) == [D EXCEPT !.held = [w \in Who |-> IF w \in S THEN 0 ELSE @[w]], !.ends = [w \in Who |-> IF w \in S THEN 0 ELSE @[w]]]
Publish(x) == [x EXCEPT !.pub = Max({@, x.db.free})]

\* ending: the margin makes up for a clock that is ahead.
Ending(length) == length + (IF Lacks("margin") THEN 0 ELSE IF Lacks("bound") THEN Min({Margin, length \div 3}) ELSE Margin)

\* take
Take(D, c, length) ==
  [D EXCEPT !.held[c] = Want(c), !.ends[c] = length + Ending(Lease) - Lease, !.queue = @ \ {c},
            !.free = @ - (IF Lacks("take") THEN 0 ELSE IF Lacks("again") THEN Want(c) ELSE Want(c) - D.held[c])]

\* takeOut and count: what is over goes. What is over of the JVM's is left alone for the margin, and for ever by a script that
\* knows no lease.
Count(D, lease) ==
  LET over == {w \in Members(D) : IF w \in Java THEN lease /\ D.ends[w] <= (IF Lacks("foreign") THEN 0 ELSE 0 - Margin)
                                                ELSE D.ends[w] <= 0}
      x == Step([Out(D, over) EXCEPT !.free = @ + (IF Lacks("gone") THEN 0 ELSE Parts(D, over))])
  IN IF over # {} /\ lease THEN Publish(x) ELSE x

\* heads: the tickets in front of the first that is served, or that is mine.
Gone(D, mine) ==
  LET alive == {c \in D.queue : c = mine \/ (There(c) /\ Want(c) <= D.number)}
  IN {c \in D.queue : \A a \in alive : D.place[c] < D.place[a]}

\* grantNext, from the first ticket on, up to mine. The first one of another process is told.
RECURSIVE Grant(_, _)
Grant(x, mine) ==
  LET gone == Gone(x.db, mine)
      D == [x.db EXCEPT !.queue = @ \ gone]
      y == [x EXCEPT !.db = D, !.d = @ \cup {c \in gone : There(c)}]
      able == {c \in D.queue : Fits(D, Want(c))}
      c == First(D, IF Lacks("first") /\ able # {} THEN able ELSE D.queue)
      rest == {a \in D.queue : Proc(a) # Proc(c) /\ There(a)}
  IN IF D.queue = {} \/ c = mine \/ c \notin able THEN y
     ELSE Grant([y EXCEPT !.db = Take(D, c, IF Lacks("provisional") THEN Lease ELSE Provisional), !.g = @ \cup {c},
                          !.n = IF rest = {} THEN @ ELSE @ \cup {First(D, rest)}], mine)

\* grantNext of rpermits.lua: the first ticket that is left is told, of whichever process.
Serve(x, mine) ==
  LET y == Grant(x, mine)
      left == y.db.queue \ {mine}
  IN IF Lacks("watch") \/ left = {} \/ (y.g = {} /\ mine # 0) THEN y
     ELSE LET c == First(y.db, y.db.queue) IN IF c = mine THEN y ELSE [y EXCEPT !.n = @ \cup {c}]

\* The least that is left to a lease that is over first, to those who wait.
Left(D) ==
  IF Members(D) = {} THEN Lease
  ELSE LET w == CHOOSE w \in Members(D) : \A v \in Members(D) : D.ends[w] <= D.ends[v]
       IN IF D.ends[w] = Forever THEN Forever ELSE Max({0, D.ends[w] + (IF w \in Java THEN Margin ELSE 0)})

Before(D, c) == {a \in D.queue : D.place[a] < D.place[c]}
Reply(x, to, left) == [x |-> x, to |-> to, left |-> left]
Queued(x, c) == Reply(x, "queued", IF Left(x.db) = Forever THEN Forever ELSE Left(x.db) + Cardinality(Before(x.db, c)))

\* obtain_queued.lua, also for a ticket that is in the queue.
RunObtain(D, c) ==
  LET x == Count(D, TRUE)
      y == [x EXCEPT !.db.queue = @ \cup {c},
                     !.db.place[c] = IF @ > 0 THEN @ ELSE 1 + Max({x.db.place[a] : a \in Calls})]
      z == Serve(y, c)
  IN CASE x.db.held[c] = Want(c) -> Reply([x EXCEPT !.db.queue = @ \ {c}], "mine", Max({0, x.db.ends[c] - Margin}))
       [] x.db.held[c] # Want(c) /\ Want(c) > D.number -> Reply(x, "wrong", 0)
       [] OTHER -> IF ~Fits(y.db, Want(c)) THEN Queued(y, c)
                   ELSE IF ~Fits(z.db, Want(c)) \/ (First(z.db, z.db.queue) # c /\ ~Lacks("passing")) THEN Queued(z, c)
                   ELSE LET t == [z EXCEPT !.db = Take(@, c, Lease)]
                        IN Reply(IF t.db.free > 0 THEN Serve(t, 0)
                                 ELSE IF t.db.queue = {} THEN t
                                 ELSE [t EXCEPT !.n = @ \cup {First(t.db, t.db.queue)}], "granted", Lease)

\* renew.lua
Renewable(D, c) == D.held[c] = Want(c) /\ D.ends[c] > 0

\* release.lua, also for a call that leaves the queue: the possible steps, of which one leaves a window.
RunRelease(D, c) ==
  LET had == D.held[c]
      x == Count([Out(D, {c}) EXCEPT !.free = @ + (IF Lacks("lost") THEN 0 ELSE IF Lacks("given") THEN Want(c) ELSE had)], FALSE)
      turn == had > 0 \/ Members(x.db) # Members(D)
      y == [x EXCEPT !.db.queue = @ \ {c}]
      two == {a \in y.db.queue : Cardinality(Before(y.db, a)) < 2}
      told == LET s == Serve(y, 0) IN IF turn /\ ~Lacks("publish") THEN Publish(s) ELSE s
  IN CASE Lacks("serve") \/ (~turn /\ c \notin D.queue) -> {y}
       [] Windows /\ turn /\ c \notin D.queue /\ y.db.free > 0 -> {told, Publish([y EXCEPT !.d = @ \cup two])}
       [] OTHER -> {told}

\* The server's new state, and what is told of it, after some calls have read their messages, and so many threads of the JVM
\* have been woken. A change of the counter is reported once to those who watch it. A message wakes as many threads as it says,
\* if so many sleep. (pc' is known.)
Apply(x, read, woken) ==
  LET seen == IF x.db.free # db.free THEN x.db.tracked ELSE {}
      asleep == Cardinality({j \in Java : pc'[j] = "wait"})
  IN /\ db' = [x.db EXCEPT !.tracked = {c \in @ \ seen : pc'[c] = "wait"}]
     /\ box' = [c \in Calls |-> IF pc'[c] # "wait" \/ ~There(c) THEN {}
                                ELSE (IF c \in read THEN {} ELSE box[c])
                                     \cup (IF c \in x.g THEN {"g"} ELSE {}) \cup (IF c \in x.n THEN {"n"} ELSE {})
                                     \cup (IF c \in x.d \cup seen THEN {"d"} ELSE {})]
     /\ latch' = Min({asleep, latch - woken + x.pub})
     /\ idle' = IF \E w \in Who : x.db.held[w] > db.held[w] THEN 0 ELSE idle

-----------------------------------------------------------------------------
(* Calls of this library. A command takes no time; messages do.                                                              *)

Believes(w) == pc[w] = "hold" /\ until[w] > 0
Fault(what) == what \in Faults /\ faults < MaxFaults /\ faults' = faults + 1

\* Where a call or thread is in the next state, with this much of a lease, and when it looks.
Now(w, state, length, at, arms) ==
  /\ pc' = [pc EXCEPT ![w] = state]
  /\ until' = [until EXCEPT ![w] = length]
  /\ timer' = [timer EXCEPT ![w] = at]
  /\ base' = [base EXCEPT ![w] = 0]
  /\ arm' = [arm EXCEPT ![w] = arms]

\* A call has asked. The first one watches the counter, and the second, if the first is of another process: see whenToLook.
Asked(c, r) ==
  LET front == Before(r.x.db, c)
      near == front = {} \/ (Cardinality(front) = 1 /\ (\A a \in front : Proc(a) # Proc(c)) /\ ~Lacks("second"))
  IN CASE r.to = "queued" -> Now(c, "wait", 0, r.left, near)
       [] r.to = "wrong" -> Now(c, "leave", 0, 0, FALSE)
       [] OTHER -> Now(c, "hold", r.left, 0, FALSE)

\* Calls of a process that ask for as much are alike: they come in the order of their numbers.
Begin(c) ==
  /\ pc[c] = "idle"
  /\ \A d \in Calls : d < c /\ Proc(d) = Proc(c) /\ Want(d) = Want(c) => pc[d] # "idle"
  /\ LET r == RunObtain(db, c) IN Asked(c, r) /\ Apply(r.x, {c}, 0)
  /\ UNCHANGED <<world, slow>>

\* The reply that the call has its permits is lost. It asks again.
Break(c) ==
  /\ pc[c] = "idle" /\ Fault("break")
  /\ LET r == RunObtain(db, c) IN r.to = "granted" /\ UNCHANGED call /\ Apply(r.x, {}, 0)
  /\ UNCHANGED <<skew, dead, changed, slow>>

Look(c) ==
  /\ pc[c] = "wait" /\ "g" \notin box[c] /\ (timer[c] = 0 \/ "d" \in box[c])
  /\ LET r == RunObtain(db, c) IN Asked(c, r) /\ Apply(r.x, {c}, 0)
  /\ UNCHANGED <<world, slow>>

\* acquisition.watch: the server reports the next change of the counter; since there may have been one before, the call looks.
Watch(c) ==
  /\ pc[c] = "wait" /\ "g" \notin box[c] /\ arm[c] /\ c \notin db.tracked
  /\ LET D == [db EXCEPT !.tracked = @ \cup {c}]
         r == RunObtain(D, c)
     IN IF Lacks("look") THEN arm' = [arm EXCEPT ![c] = FALSE] /\ UNCHANGED <<pc, base, until, timer>> /\ Apply(Step(D), {}, 0)
        ELSE Asked(c, r) /\ Apply(r.x, {c}, 0)
  /\ UNCHANGED <<world, slow>>

\* With too little of the lease left it is lengthened first.
Receive(c) ==
  /\ pc[c] = "wait" /\ (\/ "g" \in box[c] \/ box[c] = {"n"})
  /\ LET left == Max({0, Provisional - base[c]})
         renewed == [db EXCEPT !.ends[c] = Ending(Lease)]
     IN CASE "g" \notin box[c] -> /\ timer' = [timer EXCEPT ![c] = Min({@, Provisional})]
                                  /\ arm' = [arm EXCEPT ![c] = TRUE]
                                  /\ UNCHANGED <<pc, base, until>>
                                  /\ Apply(Step(db), {c}, 0)
          [] left >= Half -> Now(c, "hold", left, 0, FALSE) /\ Apply(Step(db), {c}, 0)
          [] left < Half /\ Renewable(db, c) -> Now(c, "hold", Lease, 0, FALSE) /\ Apply(Step(renewed), {c}, 0)
          [] OTHER -> Now(c, "wait", 0, 0, FALSE) /\ Apply(Step(db), {c}, 0)
  /\ UNCHANGED <<world, slow>>

\* The lease is lengthened, or by less, to end at a bound. What is not there is lost.
Renew(c) ==
  /\ Renews /\ Believes(c) /\ until[c] <= Half
  /\ \E length \in {Lease} \cup (IF Bounds THEN {1} ELSE {}) :
       IF Renewable(db, c)
       THEN Now(c, "hold", Max({until[c], length}), 0, FALSE) /\ Apply(Step([db EXCEPT !.ends[c] = Ending(length)]), {}, 0)
       ELSE Now(c, "hold", 0, 0, FALSE) /\ Apply(Step(db), {}, 0)
  /\ UNCHANGED <<world, slow>>

\* The end of a hold: it is released, or its lease is over.
Release(c) ==
  /\ pc[c] = "hold"
  /\ Now(c, "done", 0, 0, FALSE)
  /\ \E x \in RunRelease(db, c) : Apply(x, {}, 0)
  /\ UNCHANGED <<world, slow>>

\* A call gives up, or fails.
Cancel(c) ==
  /\ \/ pc[c] = "wait" /\ Fault("cancel")
     \/ pc[c] = "leave" /\ UNCHANGED faults
  /\ Now(c, "done", 0, 0, FALSE)
  /\ \E x \in RunRelease(db, c) : Apply(x, {}, 0)
  /\ UNCHANGED <<skew, dead, changed, slow>>

Crash(p) ==
  /\ p \notin dead /\ Fault("crash") /\ dead' = dead \cup {p}
  /\ \E c \in Calls : Proc(c) = p /\ pc[c] \in {"wait", "hold", "leave"}
  /\ pc' = [w \in Who |-> IF w \in Calls /\ Proc(w) = p THEN "dead" ELSE pc[w]]
  /\ UNCHANGED <<base, until, timer, arm>>
  /\ Apply(Step(db), {c \in Calls : Proc(c) = p}, 0)
  /\ UNCHANGED <<skew, changed, slow>>

\* SetPermits, of this library, and of the JVM, which takes nothing out and serves nobody.
Change(n) ==
  /\ ~changed /\ changed' = TRUE
  /\ UNCHANGED call
  /\ \/ LET x == Count(db, FALSE)
        IN Apply(Publish(Serve([x EXCEPT !.db.free = @ + n - db.number, !.db.number = n], 0)), {}, 0)
     \/ Apply([Step([db EXCEPT !.free = @ + n - db.number, !.number = n]) EXCEPT !.pub = n], {}, 0)
  /\ UNCHANGED <<skew, dead, faults, slow>>

-----------------------------------------------------------------------------
(* The JVM. It takes out what is over by its own clock. Its threads may stand still at any time.                             *)

Over(D) == {w \in Members(D) : D.ends[w] <= skew}
Purged(D, S, f) == [D EXCEPT !.held = [w \in Who |-> IF w \in S THEN @[w] - f[w] ELSE @[w]],
                             !.ends = [w \in Who |-> IF w \in S /\ f[w] = D.held[w] THEN 0 ELSE @[w]],
                             !.free = @ + Cardinality({w \in S : f[w] > 0}) + Cardinality({w \in S : f[w] > 1})]

\* As many of those that are over as it asks for, in some order.
Purges(D, k) ==
  LET S == Over(D)
      most == Min({k, Parts(D, S)})
      all == {f \in [S -> 0..2] : \A w \in S : f[w] <= D.held[w]}
  IN {D1 \in {Purged(D, S, f) : f \in all} : D1.free = D.free + most}

JavaTry(j) ==
  /\ \/ pc[j] = "idle" /\ \A i \in Java : i < j /\ Want(i) = Want(j) => pc[i] # "idle"
     \/ pc[j] = "wait" /\ (timer[j] = 0 \/ latch > 0)
  /\ \E D \in Purges(db, Want(j)) :
       LET x == IF D.free > db.free THEN Publish(Step(D)) ELSE Step(D)
           first == IF Members(D) = {} THEN Forever ELSE Min({D.ends[w] : w \in Members(D)})
           woken == IF pc[j] = "wait" /\ timer[j] > 0 THEN 1 ELSE 0
           length == IF Endless THEN Forever ELSE Lease
       IN IF Fits(D, Want(j))
          THEN /\ Now(j, "hold", length, 0, FALSE)
               /\ Apply([x EXCEPT !.db.free = @ - Want(j), !.db.held[j] = Want(j),
                                  !.db.ends[j] = IF Endless THEN Forever ELSE Lease + skew], {}, woken)
          ELSE /\ Now(j, "wait", 0, IF first = Forever THEN Forever ELSE Max({0, first - skew}), FALSE)
               /\ Apply(x, {}, woken)
  /\ UNCHANGED <<world, slow>>

\* One permit: the counter is published, if it is not 0 or less, an error to its receivers. A list: nothing is released if one of
\* them is not there or over; all that is over is taken out, and what is published is how many were removed.
JavaRelease(j) ==
  /\ pc[j] = "hold"
  /\ Now(j, "done", 0, 0, FALSE)
  /\ LET gone == Out(db, {j})
         over == Over(db)
         D == [Out(gone, over) EXCEPT !.free = @ + Parts(db, over \cup {j})]
     IN CASE j \in Large /\ (db.held[j] < 2 \/ j \in over) -> Apply(Step(db), {}, 0)
          [] j \in Large /\ db.held[j] = 2 /\ j \notin over -> Apply([Step(D) EXCEPT !.pub = Parts(db, over \cup {j})], {}, 0)
          [] OTHER -> IF db.held[j] = 0 THEN Apply(Step(db), {}, 0)
                      ELSE Apply(Publish(Step([gone EXCEPT !.free = @ + 1])), {}, 0)
  /\ UNCHANGED <<world, slow>>

-----------------------------------------------------------------------------
(* Time.                                                                                                                     *)

Urgent(c) ==
  \/ pc[c] = "wait" /\ (box[c] # {} \/ timer[c] = 0 \/ (arm[c] /\ c \notin db.tracked))
  \/ pc[c] = "hold" /\ until[c] = 0
  \/ pc[c] = "leave"

Live == {c \in db.queue : pc[c] = "wait"}
Kept == Live # {} /\ Total({w \in Who : until[w] > 0}) + Want(First(db, Live)) <= db.number

Tick ==
  /\ Clock
  /\ \E w \in Who : until[w] \notin {0, Forever} \/ timer[w] \notin {0, Forever} \/ (db.held[w] > 0 /\ db.ends[w] > 0 - Margin)
  /\ IF \A c \in Calls : ~Urgent(c) THEN UNCHANGED slow ELSE slow < Slow /\ slow' = slow + 1
  /\ db' = [db EXCEPT !.ends =
       [w \in Who |-> IF db.held[w] = 0 \/ @[w] = Forever THEN @[w] ELSE Max({0 - Margin, @[w] - 1})]]
  /\ base' = [w \in Who |-> IF w \in Calls /\ pc[w] = "wait" THEN Min({base[w] + 1, Provisional}) ELSE 0]
  /\ until' = [w \in Who |-> Less(until[w])]
  /\ timer' = [w \in Who |-> Less(timer[w])]
  /\ idle' = IF MaxIdle > 0 /\ Kept THEN Min({idle + 1, MaxIdle + 1}) ELSE 0
  /\ UNCHANGED <<world, pc, arm, box, latch>>

Init ==
  /\ \E clock \in Clocks : skew = CASE clock = "ahead" -> Margin [] clock = "behind" -> 0 - Margin [] OTHER -> 0
  /\ LET ends(w) == IF w \in Java THEN (IF Endless THEN Forever ELSE Lease + skew) ELSE Ending(Lease)
     IN db = [\* the sorted set: how many members each has, and what their leases have left, as the server's clock shows it
              held |-> [w \in Who |-> IF w \in Holders THEN Want(w) ELSE 0],
              ends |-> [w \in Who |-> IF w \in Holders THEN ends(w) ELSE 0],
              free |-> Number - Total(Holders),  \* the counter
              number |-> Number,                 \* ghost: what was set
              queue |-> {}, place |-> [c \in Calls |-> 0],  \* the tickets, and where they are or were
              tracked |-> {}]                    \* whom the server tells of the next change of the counter
  /\ pc = [w \in Who |-> IF w \in Holders THEN "hold" ELSE "idle"]
  /\ until = [w \in Who |-> IF w \notin Holders THEN 0 ELSE IF Endless /\ w \in Java THEN Forever ELSE Lease]
  /\ base = [w \in Who |-> 0] /\ timer = [w \in Who |-> 0] /\ arm = [w \in Who |-> FALSE] /\ box = [c \in Calls |-> {}]
  /\ latch = 0 /\ dead = {} /\ changed = FALSE /\ faults = 0 /\ slow = 0 /\ idle = 0

Next ==
  \/ \E c \in Calls : There(c) /\ (Begin(c) \/ Break(c) \/ Look(c) \/ Watch(c) \/ Receive(c)
                                  \/ Renew(c) \/ Release(c) \/ Cancel(c))
  \/ \E j \in Java : JavaTry(j) \/ JavaRelease(j)
  \/ \E c \in Calls : Crash(Proc(c))
  \/ \E n \in Changes : Change(n)
  \/ Tick

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold.                                                                                                           *)

\* Never more inside than there are, by the clocks of those inside. Lowering puts nobody out.
Never == Total({w \in Who : Believes(w)}) <= Max({Number} \cup IF changed THEN Changes ELSE {})

\* Who believes has its permits; of this library for longer than that, by a margin.
Held == \A w \in Who : Believes(w) => /\ db.held[w] = Want(w)
                                      /\ w \in Calls => db.ends[w] >= until[w] + Margin

\* What is free and what is held are all permits: none is lost, and none is given twice.
Sum == db.free + Parts(db, Who) = db.number

\* No hold has a ticket.
Owner == \A c \in db.queue : db.held[c] < Want(c)

\* Who gets permits gets no more than there are then.
Room == [][(\E w \in Who : db'.held[w] > db.held[w]) => db'.free >= 0]_vars

\* No call gets permits past an earlier ticket, but one whose process is gone, or that asks for too many, or leaves.
In(D) == {c \in Calls : D.held[c] > 0}
Order == [][\A c \in In(db') \ In(db), t \in db.queue :
              \/ t \in In(db') \/ t = c \/ pc'[t] # "wait"
              \/ c \in db.queue /\ db.place[c] < db.place[t]
              \/ db.place[c] > 0 /\ db.place[c] < db.place[t]
              \/ Want(t) > db'.number]_vars

\* Permits that nobody relies on are not kept from a live ticket for longer.
NotLost == MaxIdle > 0 => idle <= MaxIdle

\* No call sleeps while the first of them fits: something is under way, or it is about to look.
NoSleep == Live # {} /\ Fits(db, Want(First(db, Live))) => \E c \in Calls : Urgent(c)

\* No thread that wants one permit sleeps while one is free that is for no ticket, but those to be woken.
Told == db.queue = {} /\ db.free > 0 => \A j \in Java \ Large : pc[j] # "wait" \/ timer[j] = 0 \/ latch > 0
=============================================================================
