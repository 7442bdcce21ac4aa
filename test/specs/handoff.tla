------------------------------ MODULE handoff ------------------------------
(***************************************************************************)
(* Directed handoff: how the waiters of one path queue in Redis, and how *)
(* a release makes the first of them the owner of the key. README.md says  *)
(* what is modelled and what is not, PROTOCOL.md what follows for the code.*)
(*                                                                         *)
(* A comment above an action or an operator names the function or script   *)
(* that it stands for. R1 to R18 are the rules that PROTOCOL.md lists, S,  *)
(* L and Q what must hold, in README.md.                                   *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Go,           \* processes with this library: one registry, one path
  Java,         \* processes with Spring's: no ticket, one value for all their holds
  None,         \* no process
  Lease,        \* the lease of a hold, in ticks
  Provisional,  \* the lease of a grant until the grantee lengthens it
  Margin,       \* what a process takes off every lease (lease.Margin)
  Drifts,       \* by how many ticks a process's clock may be late when a lease ends
  Window,       \* how long a window is, in ticks, in which the key is left to those without a ticket
  WindowEvery,  \* a window is due after so many grants; 0: never
  Shows,        \* what those without a ticket leave: a "script" that the server knows, a "trace" in the queue, or "nothing"
  Handoff,      \* how often a hold may go on to the next goroutine of its process
  Faults,       \* what may go wrong or stop a call, see Fault
  MaxFaults,    \* how often
  MaxLate,      \* commands of abandoned calls that are on their way at a time
  Looks,        \* whether a waiter looks by itself: when it is "due", or "never"
  Clock,        \* whether time passes
  Slow,         \* how often time passes while something is under way that takes no time by itself
  Calls,        \* how many calls the processes make in all; 0: without end
  FirstTry,     \* whether a call tries by SET NX first
  MaxUntaken,   \* in a timed question: for how many ticks a path may be blocked by what nobody relies on
  MaxIdle,      \* in a timed question: for how many ticks a key may be free although a live ticket waits
  Without       \* what a mutant lacks: {} or the name of one guard

VARIABLES
  db,       \* what each server has, see Empty
  master,   \* the server that is the master
  drift,    \* by how much each process's clock is late, over a lease
  pc,       \* where a process's call is, see below
  num,      \* the number of its hold
  cmd,      \* the command of the call that is under way, or its reply
  sent,     \* how long ago that was sent
  has,      \* a reply has shown that the waiter's ticket is in the queue
  base,     \* how long ago the last such command was sent (R3, ticket.base)
  until,    \* for how long the process may rely on its hold (lease.State.until)
  timer,    \* when the waiter looks again: in ticks; Due: its time has come; Awake: a message woke it
  first,    \* it knows that it is first, and is about to have the server tell it of changes of the key (R17)
  soon,     \* its first look is still to come: in the next tick
  found,    \* the hold was found by looking: its grant message may still come (extras.found)
  link,     \* the connection for wake-ups: "up", "down", or "half": dead, and the server counts it still
  at,       \* the server that a process's connections lead to
  inbox,    \* messages on the connection for wake-ups, in order
  late,     \* commands of abandoned calls and broken connections; they may be executed at any time
  removal,    \* the largest number of a hold that is over and may be in Redis still (pending.go); 0: none
  last,     \* the last hold whose removal was confirmed: sent once more after a reconnection (R15, Path.Recall)
  more,     \* another goroutine of the process waits for the local half
  hands,    \* how often the hold went on to the next goroutine
  seen,     \* others waited at the last release: the next call does not try by SET NX first (barging.State.contested, R12)
  calls,    \* how many calls were begun, if they are counted
  faults,   \* how many faults there were
  slow,     \* how often time passed while something was under way
  untaken,  \* ghost: for how many ticks a key is there that nobody relies on, although somebody waits
  idle      \* ghost: for how many ticks the key has been free although a live ticket waits

\* The variables that most actions leave alone, in groups.
command == <<cmd, sent>>
ticket == <<has, base, timer, first, soon>>
wire == <<link, at, inbox>>
remains == <<late, removal, last>>
local == <<more, hands, seen>>
ghosts == <<slow, untaken, idle>>

vars == <<db, master, drift, pc, num, command, ticket, until, found, wire, remains, local, calls, faults, ghosts>>

(***************************************************************************)
(* The states of a process's call (one at a time, by the local half). The  *)
(* code's states ask, sleep and look are wait here, with and without a     *)
(* command under way.                                                      *)
(*                                                                         *)
(*   idle ──Lock──▶ try ──taken──▶ wait ──Granted──▶ hold ──Release──▶ free *)
(*                   └──granted──▶ hold  └─too old─▶ sure ──renewed─▶ hold  *)
(*                                                                         *)
(*   try   SET NX is under way                                             *)
(*   wait  it listens, has a ticket or asks for one, and sleeps            *)
(*   sure  it was granted, and renews before it relies on that (Q7)        *)
(*   hold  Lock has returned                                               *)
(*   free  the removal is under way; the local half is not free yet        *)
(*   idle  no call; also after Cancel and Lose                             *)
(*   dead  the process has crashed                                         *)
(***************************************************************************)

Procs == Go \cup Java
Servers == IF "failover" \in Faults THEN {1, 2} ELSE {1}
Nobody == <<None, 0>>
NoCmd == [op |-> "none"]
Lacks(guard) == guard \in Without

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Min2(a, b) == IF a < b THEN a ELSE b
Max2(a, b) == IF a > b THEN a ELSE b

Drop(q, v) == SelectSeq(q, LAMBDA t : t # v)
\* A queue without the tickets of a registry up to a number: its own, and those that it could not remove before (R4).
Strip(q, v) == SelectSeq(q, LAMBDA t : t[1] # v[1] \/ t[2] > v[2])
In(q, t) == \E i \in 1..Len(q) : q[i] = t
Rank(q, t) == (CHOOSE i \in 1..Len(q) : q[i] = t) - 1

-----------------------------------------------------------------------------
(* What a server does. An operator Run... is one script, atomic as scripts are; it gives the server's new state, the   *)
(* reply, and what is published to whom.                                                                            *)

Empty == [key |-> Nobody, ttl |-> 0,   \* the key's value, <<registry, number>>, and what its lease has left
          granted |-> FALSE,           \* ghost: by a release, and not lengthened since
          awaited |-> FALSE,           \* the value's mark: others waited when somebody last looked, or may do so (Q2)
          queue |-> <<>>,              \* <key>:waiters, the values of the tickets in order
          young |-> {},                \* those that are younger than a second (by their places), where time passes
          open |-> 0,                  \* the member of it that says for how long a window is open still
          grants |-> 0,                \* how many there were since the last window: in the code its age is what counts
          script |-> 0,                \* SCRIPT EXISTS: it knows no script of those without a ticket; 1: since the key's hold; 2: for longer
          trace |-> FALSE,             \* the queue's: one was seen since the last window
          passed |-> 0,                \* ghost: how many grants there were since one has tried, and one; 0: since a window nobody has
          subs |-> {},                 \* PUBSUB NUMSUB of the processes' channels
          tracks |-> {}]               \* who is to be told when the key changes

Quiet == [p \in Go |-> <<>>]
To(t, m) == [p \in Go |-> IF p = t[1] THEN <<m>> ELSE <<>>]
Join(x, y) == [p \in Go |-> x[p] \o y[p]]

Grant(n) == [m |-> "grant", n |-> n, left |-> 0]       \* g: you are the owner
First(n, left) == [m |-> "first", n |-> n, left |-> left] \* n: you are the next one; look when so long is over
Changed == [m |-> "changed", n |-> 0, left |-> 0]      \* tracking: the key changed

\* warn, in queue.lua, to the first of a queue.
Warn(q, left) == IF q = <<>> \/ Lacks("first") THEN Quiet ELSE To(q[1], First(q[1][2], left))

Key(D, v, ttl, granted) == [D EXCEPT !.key = v, !.ttl = ttl, !.granted = granted]
NoKey(D) == [Key(D, Nobody, 0, FALSE) EXCEPT !.awaited = FALSE]

\* mark, in spring.lua (Q2): whoever finds the key taken, and waits, marks the value of its holder, unless that is Java's.
Mark(D) == IF D.key[1] \in Go /\ ~Lacks("mark") THEN [D EXCEPT !.awaited = TRUE] ELSE D

\* A hold that comes from the queue has the mark from the beginning.
Awaited(D) == IF Lacks("mark") THEN D ELSE [D EXCEPT !.awaited = TRUE]

\* heads, in queue.lua (R1): the queue without the tickets in front of the first that is served, or that is v. Those are of
\* processes whose channels nobody subscribes to.
Heads(D, v) ==
  LET alive == {i \in 1..Len(D.queue) : D.queue[i] = v \/ D.queue[i][1] \in D.subs \/ Lacks("numsub")}
  IN IF alive = {} THEN <<>> ELSE SubSeq(D.queue, Min(alive), Len(D.queue))

\* grantNext, in queue.lua: removes the first ticket of q, SET, PUBLISH. Provisional is the lease of the grant (Q6). Two
\* processes are told, whatever the length of the queue (Q3). The new first one need not be if it is young: r.tells.
Serve(D, q, r) ==
  [db |-> [Awaited(Key(D, q[1], IF Lacks("provisional") THEN Lease ELSE Provisional, TRUE))
             EXCEPT !.queue = IF Lacks("remove") THEN q ELSE Tail(q),
                    !.passed = IF @ > 0 THEN Min2(@ + 1, WindowEvery + 2) ELSE 0],
   out |-> Join(IF Len(q) > 1 /\ (r.tells \/ q[2] \notin D.young) THEN Warn(Tail(q), Provisional) ELSE Quiet,
                To(q[1], Grant(q[1][2])))]

\* windows.lua: what a release does with the key. A window is written down, so nobody closes it before its time. In the code there is
\* one now and then where it is quiet, too.
Pass(D, r) ==
  LET q == Heads(D, Nobody)
      left == IF D.open > 0 THEN D.open ELSE Window
      due == (D.grants >= WindowEvery /\ (~r.quiet \/ D.trace)) \/ (D.open > 0 /\ ~Lacks("record"))
  IN CASE WindowEvery > 0 /\ due /\ ~Lacks("open") /\ (q # <<>> \/ r.yields) ->
            [db |-> [NoKey(D) EXCEPT !.queue = q, !.open = left, !.grants = 0, !.trace = FALSE, !.passed = 0], others |-> 1,
             out |-> IF q = <<>> THEN Quiet ELSE Join(Warn(q, left - 1), Warn(Tail(q), left))]
       [] q = <<>> -> [db |-> [NoKey(D) EXCEPT !.queue = q], others |-> 0, out |-> Quiet]
       [] OTHER ->
            LET x == Serve(D, q, r)
            IN [db |-> [x.db EXCEPT !.grants = Min2(@ + 1, WindowEvery)], others |-> 1, out |-> x.out]

Reply(D, re, left, out) ==
  [db |-> D, re |-> [op |-> "reply", to |-> re, left |-> left, rank |-> 0], out |-> out]

\* SET key value NX PX lease: the first try.
RunSetNX(D, r) ==
  IF D.key = Nobody THEN Reply(Key(D, <<r.p, r.n>>, Lease, FALSE), "granted", 0, Quiet)
  ELSE Reply(D, "taken", 0, Quiet)

Mine(D, r) == D.key[1] = r.p /\ D.key[2] <= r.n

\* The ticket v waits: for a lease to end, or a window.
Queued(D, v, out) ==
  [db |-> Mark(D), out |-> out,
   re |-> [op |-> "reply", to |-> "queued", rank |-> Rank(D.queue, v),
           left |-> IF D.key = Nobody THEN Max2(D.open - 1, 0) ELSE D.ttl]]

\* V, whose registry has the key by an older attempt, takes that over.
TakeOver(D, v) == Reply([Key(D, v, Lease, FALSE) EXCEPT !.queue = Drop(@, v)], "granted", 0, Quiet)

\* The first of q becomes the owner by its own command. The new first one is told.
Take(D, q) ==
  Reply([Awaited(Key(D, q[1], Lease, FALSE)) EXCEPT !.queue = Tail(q)], "granted", 0, Warn(Tail(q), Lease))

\* obtain_queued.lua, for a ticket v that is in the queue: when the key is free and no window is open, the first ticket is served
\* (R5). In a mutant v takes the key past those in front when its time has come.
Ask(D, r, v) ==
  LET q == IF Lacks("turn") /\ r.due THEN SubSeq(D.queue, Rank(D.queue, v) + 1, Len(D.queue)) ELSE Heads(D, v)
  IN IF D.key # Nobody \/ (D.open > 0 /\ ~Lacks("record")) THEN Queued(D, v, Quiet)
     ELSE IF q[1] = v THEN Take(D, q)
     ELSE LET x == Serve(D, q, r) IN Queued(x.db, v, x.out)

\* obtain_queued.lua, to look while the key is taken: the tickets in front whose processes are gone may go (r.clears: in the code
\* the call asks for that at times). Who is first then is told.
Clear(D, r, v) ==
  LET q == Heads(D, v)
  IN IF ~r.clears \/ q = D.queue THEN Queued(D, v, Quiet)
     ELSE Queued([D EXCEPT !.queue = q], v, IF q[1] = v THEN Quiet ELSE Warn(q, D.ttl))

\* obtain_queued.lua, to queue: a new ticket comes last (R8). Those of older attempts stay until they are swept. (The script also
\* removes one that the call names.)
RunObtain(D, r) ==
  LET v == <<r.p, r.n>>
      q == IF In(D.queue, v) THEN D.queue ELSE Append(D.queue, v)
      young == Clock /\ (In(D.queue, v) => v \in D.young)
  IN CASE D.key[1] = r.p /\ D.key[2] > r.n /\ ~Lacks("order") -> Reply(D, "refused", 0, Quiet)   \* R4: late
       [] D.key = v -> Reply(D, "owner", D.ttl, Quiet)             \* only in a mutant: a number is used once
       [] D.key[1] = r.p /\ D.key # v -> TakeOver(D, v)            \* a grant that this call missed
       [] OTHER -> Ask([D EXCEPT !.queue = q, !.young = IF young THEN @ \cup {v} ELSE @], r, v)

\* The same script, to look and to refresh: it never adds a ticket, and needs one.
RunLook(D, r) ==
  LET v == <<r.p, r.n>>
  IN CASE D.key = v -> Reply(D, "owner", D.ttl, Quiet)
       [] D.key[1] = r.p /\ D.key[2] > r.n -> Reply(D, "refused", 0, Quiet)
       [] D.key[1] = r.p /\ D.key[2] < r.n /\ (In(D.queue, v) \/ Lacks("ticket")) -> TakeOver(D, v)
       [] D.key # v /\ D.key[1] # r.p /\ In(D.queue, v) -> IF D.key = Nobody THEN Ask(D, r, v) ELSE Clear(D, r, v)
       [] OTHER -> Reply(D, "missing", 0, Quiet)

\* release.lua: the end of a hold, and of a call that gives up (R10), whose tickets it removes: who is first by
\* that is told. Most holds have no mark: their release asks for no queue (release, in spring.lua).
RunRelease(D, r) ==
  LET q == IF r.leave THEN Strip(D.queue, <<r.p, r.n>>) ELSE D.queue
      D1 == [D EXCEPT !.queue = q]
      next == IF q # <<>> /\ q[1] # D.queue[1] THEN Warn(q, D.ttl) ELSE Quiet
      over == IF Lacks("value") THEN D.key # Nobody ELSE Mine(D, r) /\ ~(Lacks("leave") /\ r.leave)
  IN IF over /\ ~D.awaited /\ ~r.leave /\ ~r.yields THEN Reply(NoKey(D), "done", 0, Quiet)
     ELSE IF over
     THEN LET x == Pass(D1, r) IN Reply(x.db, "done", x.others, Join(next, x.out))
     ELSE Reply(D1, "gone", 0, next)

\* renew.lua
RunRenew(D, r) ==
  IF D.key = <<r.p, r.n>> THEN Reply(Key(D, D.key, Lease, FALSE), "renewed", 0, Quiet) ELSE Reply(D, "gone", 0, Quiet)

Run(D, r) ==
  LET a == CASE r.op = "setnx" -> RunSetNX(D, r)
             [] r.op = "obtain" -> RunObtain(D, r)
             [] r.op = "look" -> RunLook(D, r)
             [] r.op = "release" -> RunRelease(D, r)
             [] r.op = "renew" -> RunRenew(D, r)
      b == IF a.db.key = D.key THEN a
           ELSE [a EXCEPT !.db.tracks = {},   \* the server tells of a change once
                         !.db.script = Min2(2 * @, 2),
                          !.out = [p \in Go |-> @[p] \o IF p \in D.tracks THEN <<Changed>> ELSE <<>>]]
  IN IF b.db.young = {} THEN b ELSE [b EXCEPT !.db.young = {t \in @ : In(b.db.queue, t)}]

\* A command as the server may execute it: the first ticket is told that it is, unless it is young and the server likes. (In
\* the code the ticket's age decides.) And a look may clear: see Clear.
Executions(D, r) ==
  LET clears == IF r.op # "look" \/ D.key = Nobody \/ Heads(D, <<r.p, r.n>>) = D.queue THEN {FALSE} ELSE BOOLEAN
  IN {r @@ [tells |-> x, clears |-> y] : x \in IF D.young = {} THEN {TRUE} ELSE BOOLEAN, y \in clears}

\* A message reaches whoever has a connection to this server that works. That the key has changed twice is no more than that
\* it has.
Deliver(s, out) ==
  [p \in Go |-> IF link[p] # "up" \/ at[p] # s THEN inbox[p]
                ELSE IF out[p] = <<Changed>> /\ inbox[p] # <<>> /\ inbox[p][Len(inbox[p])] = Changed THEN inbox[p]
                ELSE inbox[p] \o out[p]]

\* The key of server s goes without a command.
Vanish(s, D) ==
  /\ db' = [db EXCEPT ![s] = [NoKey(D) EXCEPT !.tracks = {}]]
  /\ inbox' = Deliver(s, [p \in Go |-> IF p \in D.tracks THEN <<Changed>> ELSE <<>>])

-----------------------------------------------------------------------------
(* Commands, and time as processes count it.                                *)

Request(p, op) == [op |-> op, p |-> p, n |-> num[p], s |-> at[p], due |-> FALSE, leave |-> FALSE, yields |-> FALSE, quiet |-> FALSE]
InFlight(c) == c.op \in {"setnx", "obtain", "look", "release", "renew"}

\* Commands that can make a hold the owner, or put a ticket into the queue. The sweep watches for no others.
Grants(r) == r.op \in {"setnx", "obtain"}

\* For how long a hold may be relied on whose command was sent ago ticks ago, in ticks of the server: the process takes
\* the margin off, and its clock may be late by its drift.
Sure(p, length, ago) == Max2(0, length - (IF Lacks("margin") THEN 0 ELSE Margin) + drift[p] - ago)

Half == (Provisional + 1) \div 2

\* All that is left of a process's older calls, anywhere. A new number is larger than all of these. Numbers that have
\* left no trace can come again: nothing in the protocol compares with them, and so the state space is finite.
Traces(p) ==
  {num[p], removal[p], last[p]}
  \cup UNION {{db[s].key[2] : i \in IF db[s].key[1] = p THEN {1} ELSE {}} : s \in Servers}
  \cup UNION {{db[s].queue[i][2] : i \in {k \in 1..Len(db[s].queue) : db[s].queue[k][1] = p}} : s \in Servers}
  \cup {r.n : r \in {x \in late : x.p = p}}
  \cup {inbox[p][i].n : i \in 1..Len(inbox[p])}
Fresh(p) == IF Lacks("numbers") THEN 1 ELSE Max(Traces(p) \cup {0}) + 1

\* acquisition.ask: an attempt whose outcome is unknown, or that is over, is given up, and its number with it.
NoMore(p) == IF Lacks("fresh") THEN num[p] ELSE 0

Send(p, r) == /\ cmd' = [cmd EXCEPT ![p] = r]
              /\ sent' = [sent EXCEPT ![p] = 0]
Idle(p) == /\ cmd' = [cmd EXCEPT ![p] = NoCmd]
           /\ sent' = [sent EXCEPT ![p] = 0]

\* The command of a call that is given up may still be executed, or be lost.
Forget(p) == late' \in IF InFlight(cmd[p]) /\ Cardinality(late) < MaxLate THEN {late, late \cup {cmd[p]}} ELSE {late}

Fault(what) == what \in Faults /\ faults < MaxFaults /\ faults' = faults + 1

Believes(p) == pc[p] = "hold" /\ until[p] > 0

-----------------------------------------------------------------------------
(* A process's call.                                                        *)

Due == 0
Awake == -1

\* acquisition.sleep: when the lease is over, and the tickets in front had their poll intervals.
Asleep(left, rank, ago) == IF Looks = "due" THEN Max2(left + rank + 1 - ago, Due) ELSE 1

\* Lock.enter and Lock.acquire: the local half is free. Most locks are free, so the first try is a SET NX; not where others
\* waited at the last release (R12). Where calls have no end, messages of the last one arrive before the next one begins:
\* else numbers would have no end. When Java has had its turn, Q5 is answered, and nobody begins again.
JavaServed == calls > 0 /\ \A j \in Java : pc[j] # "wait"
Begin(p) ==
  /\ pc[p] = "idle"
  /\ IF Calls = 0 THEN inbox[p] = <<>> /\ ~JavaServed ELSE calls < Calls
  /\ calls' = IF Calls = 0 THEN calls ELSE calls + 1
  /\ IF seen[p] \/ ~FirstTry
     THEN /\ pc' = [pc EXCEPT ![p] = "wait"]
          /\ timer' = [timer EXCEPT ![p] = Awake]
          /\ UNCHANGED <<command, num>>
     ELSE /\ pc' = [pc EXCEPT ![p] = "try"]
          /\ num' = [num EXCEPT ![p] = Fresh(p)]
          /\ Send(p, [Request(p, "setnx") EXCEPT !.n = Fresh(p)])
          /\ UNCHANGED timer
  /\ UNCHANGED <<db, master, drift, has, base, first, soon, until, found, wire, remains, local, faults, ghosts>>

\* internal/wake: SUBSCRIBE to the process's channel, on a new connection.
Subscribe(p) ==
  /\ link' = [link EXCEPT ![p] = "up"]
  /\ db' = [db EXCEPT ![at[p]].subs = @ \cup {p}]
  /\ inbox' = [inbox EXCEPT ![p] = <<>>]

\* acquisition.watch: the first waiter has the server tell of every change of the key, and looks at what its lease has left. (If
\* the key is free because of a window, the code looks every 10 ms, to no effect.)
Track(p) ==
  /\ pc[p] = "wait" /\ cmd[p] = NoCmd /\ first[p] /\ link[p] = "up" /\ ~Lacks("track")
  /\ first' = [first EXCEPT ![p] = FALSE]
  /\ db' = [db EXCEPT ![at[p]].tracks = @ \cup {p}]
  /\ timer' = [timer EXCEPT ![p] = IF @ < 1 THEN @
                                   ELSE IF db[at[p]].key # Nobody THEN Asleep(db[at[p]].ttl, 0, 0)
                                   ELSE IF db[at[p]].open > 0 THEN @ ELSE Awake]
  /\ UNCHANGED <<master, drift, pc, num, command, has, base, soon, until, found, wire, remains, local, calls, faults, ghosts>>

\* acquisition.inQueue and ask: a waiter that is awake looks, or asks for a ticket. Each command that can make a hold the
\* owner, or a ticket, has a number of its own. Before the first ticket the waiter subscribes to its channel, and waits for
\* the answer (R9). After each subscription it looks (R7).
Subscribed(p) == link[p] # "down" \/ Lacks("subscribe")
Look(p) ==
  /\ pc[p] = "wait" /\ cmd[p] = NoCmd
  /\ timer[p] < 1 \/ ~Subscribed(p)
  /\ LET due == timer[p] = Due /\ Lacks("turn") IN
       IF has[p]
       THEN Send(p, [Request(p, "look") EXCEPT !.due = due]) /\ UNCHANGED num
       ELSE LET n == IF Lacks("fresh") /\ num[p] > 0 THEN num[p] ELSE Fresh(p)
            IN Send(p, [Request(p, "obtain") EXCEPT !.due = due, !.n = n]) /\ num' = [num EXCEPT ![p] = n]
  /\ timer' = [timer EXCEPT ![p] = 1]
  /\ soon' = [soon EXCEPT ![p] = @ /\ ~Lacks("once")]
  /\ IF Subscribed(p) THEN UNCHANGED <<link, db, inbox>> ELSE Subscribe(p)
  /\ UNCHANGED <<master, drift, pc, has, base, first, until, found, at, remains, local, calls, faults, ghosts>>

\* In a mutant: the subscription comes later.
Listen(p) ==
  /\ Lacks("subscribe")
  /\ pc[p] = "wait" /\ link[p] = "down" /\ has[p]
  /\ Subscribe(p)
  /\ UNCHANGED <<master, drift, pc, num, command, ticket, until, found, at, remains, local, calls, faults, ghosts>>

NoTicket(p) == /\ has' = [has EXCEPT ![p] = FALSE]
               /\ base' = [base EXCEPT ![p] = Lease]
               /\ first' = [first EXCEPT ![p] = FALSE]
               /\ soon' = [soon EXCEPT ![p] = FALSE]

\* Hold.Grant and Hold.GrantShort: Lock returns, or, when too little of the lease is left, it was granted for nothing.
Held(p, length) ==
  /\ until' = [until EXCEPT ![p] = length]
  /\ pc' = [pc EXCEPT ![p] = IF length > 0 THEN "hold" ELSE "wait"]
  /\ timer' = [timer EXCEPT ![p] = IF length > 0 THEN 1 ELSE Awake]
  /\ NoTicket(p)
  /\ Idle(p)

\* acquisition.granted and found: with less than half of the provisional lease certain, sure renews before Lock returns (Q7).
Granted(p, length) ==
  IF length >= Half
  THEN Held(p, length)
  ELSE /\ pc' = [pc EXCEPT ![p] = "sure"]
       /\ Send(p, Request(p, "renew"))
       /\ NoTicket(p)
       /\ UNCHANGED <<until, timer>>

\* The reply to a command of the call that is under way.
Answered(p) ==
  LET c == cmd[p]
      ago == IF Lacks("sent") THEN 0 ELSE sent[p]
      full == Sure(p, Lease, ago)
      again == pc[p] = "wait" /\ c.to \in {"missing", "refused"}   \* expired, lost in a failover: queue anew
      over == pc[p] = "sure" /\ c.to = "gone"                      \* the grant is over: the same
  IN
  /\ c.op = "reply"
  /\ \/ /\ pc[p] = "try" /\ c.to = "taken"
        /\ pc' = [pc EXCEPT ![p] = "wait"]
        /\ timer' = [timer EXCEPT ![p] = Awake]
        /\ Idle(p)
        /\ UNCHANGED <<has, base, first, soon, until, found, seen>>
     \/ /\ \/ pc[p] \in {"try", "wait"} /\ c.to = "granted"
           \/ pc[p] = "sure" /\ c.to = "renewed"
        /\ Held(p, full)
        /\ UNCHANGED <<found, seen>>
     \/ /\ pc[p] = "wait" /\ c.to = "owner"          \* R3: a reply with p milliseconds left counts as sent + p
        /\ Granted(p, Sure(p, c.left, ago))
        /\ found' = [found EXCEPT ![p] = TRUE]
        /\ UNCHANGED seen
     \/ /\ pc[p] = "wait" /\ c.to = "queued"         \* R3: the ticket was still in the queue
        /\ has' = [has EXCEPT ![p] = TRUE]
        /\ base' = [base EXCEPT ![p] = ago]
        /\ timer' = [timer EXCEPT ![p] = Asleep(c.left, c.rank, ago)]
        /\ first' = [first EXCEPT ![p] = c.rank = 0 \/ Lacks("one")]
        /\ soon' = [soon EXCEPT ![p] = c.rank > 0 /\ (@ \/ (Clock /\ ~has[p])) /\ ~Lacks("first")]
        /\ Idle(p)
        /\ UNCHANGED <<pc, until, found, seen>>
     \/ /\ again \/ over
        /\ pc' = [pc EXCEPT ![p] = "wait"]
        /\ timer' = [timer EXCEPT ![p] = Awake]
        /\ NoTicket(p)
        /\ found' = [found EXCEPT ![p] = FALSE]
        /\ Idle(p)
        /\ UNCHANGED <<until, seen>>
     \/ /\ pc[p] = "hold"                            \* lease.State.Reply: what is over is not revived (S6)
        /\ until' = [until EXCEPT ![p] = IF c.to = "renewed" /\ @ > 0 THEN Max2(@, full) ELSE 0]
        /\ Idle(p)
        /\ UNCHANGED <<pc, ticket, found, seen>>
     \/ /\ pc[p] = "free"                            \* Path.Release: only now is the local half free
        /\ pc' = [pc EXCEPT ![p] = "idle"]
        /\ Idle(p)
        /\ seen' = [seen EXCEPT ![p] = FirstTry /\ WindowEvery > 0 /\ c.left > 0]
        /\ UNCHANGED <<ticket, until, found>>
  /\ num' = [num EXCEPT ![p] = IF pc[p] = "free" \/ (pc[p] = "try" /\ c.to = "taken") THEN 0
                               ELSE IF again \/ over THEN NoMore(p) ELSE @]
  /\ removal' = [removal EXCEPT ![p] = IF over THEN Max2(@, num[p]) ELSE @]
  /\ last' = [last EXCEPT ![p] = IF pc[p] = "free" /\ "failover" \in Faults /\ ~Lacks("twice") THEN num[p] ELSE @]
  /\ UNCHANGED <<db, master, drift, wire, late, more, hands, calls, faults, ghosts>>

\* Part.Renew, by the owner, the scheduler, or to lengthen a provisional lease (R11).
Renew(p) ==
  /\ Believes(p) /\ cmd[p] = NoCmd /\ until[p] <= Half
  /\ Send(p, Request(p, "renew"))
  /\ UNCHANGED <<db, master, drift, pc, num, ticket, until, found, wire, remains, local, calls, faults, ghosts>>

\* Another goroutine of this process comes, and Path.Release (Hold.HandOff) hands the hold to it. The number stays.
Arrive(p) ==
  /\ Handoff > 0 /\ pc[p] = "hold" /\ ~more[p]
  /\ more' = [more EXCEPT ![p] = TRUE]
  /\ UNCHANGED <<db, master, drift, pc, num, command, ticket, until, found, wire, remains, hands, seen, calls, faults, ghosts>>
HandOn(p) ==
  /\ Believes(p) /\ more[p] /\ until[p] >= Half /\ (hands[p] < Handoff \/ Lacks("limit"))
  /\ more' = [more EXCEPT ![p] = FALSE]
  /\ hands' = [hands EXCEPT ![p] = Min2(@ + 1, Handoff)]
  /\ UNCHANGED <<db, master, drift, pc, num, command, ticket, until, found, wire, remains, seen, calls, faults, ghosts>>

\* The end of a call or a hold in its process.
Over(p, state) ==
  /\ pc' = [pc EXCEPT ![p] = state]
  /\ until' = [until EXCEPT ![p] = 0]
  /\ NoTicket(p)
  /\ timer' = [timer EXCEPT ![p] = 1]
  /\ found' = [found EXCEPT ![p] = FALSE]
  /\ more' = [more EXCEPT ![p] = FALSE]
  /\ hands' = [hands EXCEPT ![p] = 0]

\* Lock.release, of the last owner in this process. If goroutines of it wait that have used their handoff limit up, it yields:
\* a release without tickets may then be open. A renewal that is under way may be executed after it. It says that it is quiet by an
\* answer that is no older than its hold, or has none: in the code, than a second before that.
Release(p) ==
  /\ Believes(p)
  /\ ~more[p] \/ until[p] < Half \/ (hands[p] = Handoff /\ ~Lacks("limit"))
  /\ Over(p, "free")
  /\ \E quiet \in {FALSE, Shows # "nothing" /\ (db[at[p]].script < 2 \/ Lacks("script"))} :
       Send(p, [Request(p, "release") EXCEPT !.yields = more[p], !.quiet = quiet])
  /\ Forget(p)
  /\ UNCHANGED <<db, master, drift, num, wire, removal, last, seen, calls, faults, ghosts>>

\* The hold is lost, and its owner told (Hold.unlockLose). What it left in Redis is removed by its Unlock (Path.Release).
Lose(p) ==
  /\ pc[p] = "hold" /\ until[p] = 0
  /\ Over(p, "idle") /\ Idle(p) /\ Forget(p)
  /\ num' = [num EXCEPT ![p] = 0]
  /\ removal' = [removal EXCEPT ![p] = Max2(@, num[p])]
  /\ UNCHANGED <<db, master, drift, wire, last, seen, calls, faults, ghosts>>

\* acquisition.leave: a call gives up, at any point: its context, its wait, Close. It leaves the queue (R10): like everything
\* that a call leaves behind, its ticket is the sweep's.
Cancel(p) ==
  /\ pc[p] \in {"try", "wait", "sure"}
  /\ Fault("cancel")
  /\ Over(p, "idle") /\ Idle(p) /\ Forget(p)
  /\ num' = [num EXCEPT ![p] = 0]
  /\ removal' = [removal EXCEPT ![p] = IF Lacks("sweep") THEN 0 ELSE Max2(@, num[p])]
  /\ UNCHANGED <<db, master, drift, wire, last, seen, calls, ghosts>>

-----------------------------------------------------------------------------
(* Messages.                                                                *)

\* Registry.deliver. A call that waits takes its mail when it sleeps.
Receive(p) ==
  LET m == Head(inbox[p])
      waits == pc[p] = "wait"
      waited == waits /\ m.n = num[p]
      regrants == m.m = "grant" /\ pc[p] = "hold" /\ m.n = num[p]
  IN
  /\ inbox[p] # <<>> /\ link[p] = "up" /\ (waits => cmd[p] = NoCmd)
  /\ inbox' = [inbox EXCEPT ![p] = Tail(@)]
  /\ \/ /\ m.m = "grant" /\ waited
        /\ Granted(p, Sure(p, Provisional, IF Lacks("grant") THEN 0 ELSE base[p]))
        /\ UNCHANGED <<found, removal>>
     \/ /\ regrants                                  \* Hold.GrantAgain
        /\ IF found[p] /\ ~Lacks("found")
           THEN /\ found' = [found EXCEPT ![p] = FALSE]   \* the message of the grant that it found by looking
                /\ UNCHANGED until
           ELSE /\ until' = [until EXCEPT ![p] = 0]       \* R4: granted twice, so this hold is lost
                /\ UNCHANGED found
        /\ UNCHANGED <<pc, command, ticket, removal>>
     \/ /\ m.m = "grant" /\ ~waits /\ ~regrants /\ pc[p] # "sure"
        /\ removal' = [removal EXCEPT ![p] = Max2(@, m.n)]    \* R4: nobody waits for it (Cleaner.Expedite)
        /\ UNCHANGED <<pc, command, ticket, until, found>>
     \/ /\ m.m = "first" /\ waited
        /\ first' = [first EXCEPT ![p] = TRUE]
        /\ timer' = [timer EXCEPT ![p] = IF @ < 1 THEN @ ELSE Asleep(m.left, 0, 0)]
        /\ UNCHANGED <<pc, command, has, base, soon, until, found, removal>>
     \/ /\ waits                                     \* a grant of an attempt whose reply was lost: the next takes over
        /\ \/ m.m = "grant" /\ ~waited
           \/ m.m = "changed"
        /\ timer' = [timer EXCEPT ![p] = Awake]
        /\ UNCHANGED <<pc, command, has, base, first, soon, until, found, removal>>
     \/ /\ \/ m.m = "first" /\ ~waited
           \/ m.m = "changed" /\ ~waits
           \/ m.m = "grant" /\ pc[p] = "sure"        \* a call that renews has its mail no more
        /\ UNCHANGED <<pc, command, ticket, until, found, removal>>
  /\ UNCHANGED <<db, master, drift, num, link, at, late, last, local, calls, faults, ghosts>>

-----------------------------------------------------------------------------
(* The server executes what has arrived.                                    *)

\* The command of a call.
Exec(p) ==
  /\ InFlight(cmd[p])
  /\ LET s == cmd[p].s
     IN \E r \in Executions(db[s], cmd[p]) :
          LET a == Run(db[s], r)
          IN /\ db' = [db EXCEPT ![s] = a.db]
             /\ cmd' = [cmd EXCEPT ![p] = a.re]
             /\ inbox' = Deliver(s, a.out)
  /\ UNCHANGED <<master, drift, pc, num, sent, ticket, until, found, link, at, remains, local, calls, faults, ghosts>>

\* A command whose call does not wait for it any more, or whose connection is gone.
ExecLate(c) ==
  /\ c \in late
  /\ late' = late \ {c}
  /\ \E r \in Executions(db[c.s], c) :
       LET a == Run(db[c.s], r)
       IN /\ db' = [db EXCEPT ![c.s] = a.db]
          /\ inbox' = Deliver(c.s, a.out)
  /\ UNCHANGED <<master, drift, pc, num, command, ticket, until, found, link, at, removal, last, local, calls, faults, ghosts>>

\* Cleaner.Remove: the removal of what a call has left, again and again until no grant of it can come any more.
Sweep(p) ==
  /\ removal[p] > 0 /\ pc[p] # "dead"
  /\ \E r \in Executions(db[at[p]], [Request(p, "release") EXCEPT !.n = removal[p], !.leave = TRUE]) :
       LET a == Run(db[at[p]], r)
       IN /\ db' = [db EXCEPT ![at[p]] = a.db]
          /\ inbox' = Deliver(at[p], a.out)
  /\ removal' = [removal EXCEPT ![p] = IF ~Lacks("watch") /\ \E r \in late : r.p = p /\ r.n <= @ /\ Grants(r) THEN @ ELSE 0]
  /\ last' = [last EXCEPT ![p] = IF "failover" \in Faults /\ ~Lacks("twice") THEN Max2(@, removal[p]) ELSE @]
  /\ UNCHANGED <<master, drift, pc, num, command, ticket, until, found, link, at, late, local, calls, faults, ghosts>>

-----------------------------------------------------------------------------
(* Java.                                                                    *)

\* One call, where calls have no end: that it comes at any time is enough.
JavaBegin(j) ==
  /\ pc[j] = "idle"
  /\ calls < Max2(Calls, 1)
  /\ calls' = calls + 1
  /\ pc' = [pc EXCEPT ![j] = "wait"]
  /\ timer' = [timer EXCEPT ![j] = Due]
  /\ UNCHANGED <<db, master, drift, num, command, has, base, first, soon, until, found, wire, remains, local, faults, ghosts>>

\* What a try leaves that fails: the server knows Java's script. A call of this library that polls leaves a trace. (In the code there
\* must be a queue; else the next try does.)
Seen(D) ==
  IF Shows = "nothing" THEN D
  ELSE [D EXCEPT !.script = IF Shows = "script" THEN Max2(@, 1) ELSE @,
                 !.trace = @ \/ (Shows = "trace" /\ ~Lacks("trace")),
                 !.passed = Max2(@, 1)]

\* RedisLockRegistry's obtain script, which its spin lock runs every poll interval: here once in every tick.
JavaTry(j) ==
  /\ pc[j] = "wait" /\ timer[j] = Due
  /\ timer' = [timer EXCEPT ![j] = IF Clock /\ db[at[j]].key # Nobody THEN 1 ELSE @]
  /\ IF db[at[j]].key = Nobody
     THEN /\ pc' = [pc EXCEPT ![j] = "hold"]
          /\ until' = [until EXCEPT ![j] = Sure(j, Lease, 0)]
          /\ LET D == db[at[j]]
             IN /\ db' = [db EXCEPT ![at[j]] = [Key(D, <<j, 1>>, Lease, FALSE) EXCEPT !.tracks = {}, !.passed = 0]]
                /\ inbox' = Deliver(at[j], [p \in Go |-> IF p \in D.tracks THEN <<Changed>> ELSE <<>>])
     ELSE Clock /\ db' = [db EXCEPT ![at[j]] = Seen(@)] /\ UNCHANGED <<pc, until, inbox>>
  /\ UNCHANGED <<master, drift, num, command, has, base, first, soon, found, link, at, remains, local, calls, faults, ghosts>>

\* Its release script: it removes the key if it has its value, and knows no queue. A lease that is over is the end, too.
JavaRelease(j) ==
  /\ pc[j] = "hold"
  /\ pc' = [pc EXCEPT ![j] = "idle"]
  /\ until' = [until EXCEPT ![j] = 0]
  /\ IF db[at[j]].key = <<j, 1>> THEN Vanish(at[j], db[at[j]]) ELSE UNCHANGED <<db, inbox>>
  /\ UNCHANGED <<master, drift, num, command, ticket, found, link, at, remains, local, calls, faults, ghosts>>

-----------------------------------------------------------------------------
(* What goes wrong. Each costs one of MaxFaults.                            *)

\* A call without the reply that it waited for. An attempt that may yet be executed is abandoned (acquisition.abandon); a look
\* is made again, and a renewal that was to make sure is followed by one; a removal is sent again.
Unanswered(p, s) ==
  LET c == cmd[p]
      attempt == pc[p] \in {"try", "wait"} /\ c # NoCmd /\ ~has[p]
  IN
  /\ Forget(p)
  /\ pc' = [pc EXCEPT ![p] = IF c # NoCmd /\ @ \in {"try", "sure"} THEN "wait" ELSE @]
  /\ has' = [has EXCEPT ![p] = @ \/ pc[p] = "sure"]
  /\ timer' = [timer EXCEPT ![p] = IF pc[p] \in {"try", "wait", "sure"} THEN Awake ELSE @]
  /\ num' = [num EXCEPT ![p] = IF attempt THEN NoMore(p) ELSE @]
  /\ removal' = [removal EXCEPT ![p] = Max2(@, Max2(IF attempt THEN num[p] ELSE 0, IF s # at[p] THEN last[p] ELSE 0))]
  /\ IF pc[p] = "free" THEN Send(p, [Request(p, "release") EXCEPT !.s = s]) ELSE Idle(p)

\* The reply is lost, or the command, or it is executed later: the connection broke. The call asks again.
Break(p) ==
  /\ cmd[p] # NoCmd /\ pc[p] # "dead"
  /\ Fault("break")
  /\ Unanswered(p, at[p])
  /\ UNCHANGED <<db, master, drift, base, first, soon, until, found, wire, last, local, calls, ghosts>>

Unlink(D, p) == [D EXCEPT !.subs = @ \ {p}, !.tracks = @ \ {p}]

\* The connection for wake-ups breaks, and both sides know; or nobody does.
Cut(p) ==
  /\ link[p] = "up" /\ pc[p] # "dead"
  /\ inbox' = [inbox EXCEPT ![p] = <<>>]
  /\ \/ /\ Fault("cut")
        /\ link' = [link EXCEPT ![p] = "down"]
        /\ db' = [db EXCEPT ![at[p]] = Unlink(@, p)]
     \/ /\ Fault("half")
        /\ link' = [link EXCEPT ![p] = "half"]
        /\ UNCHANGED db
  /\ UNCHANGED <<master, drift, pc, num, command, ticket, until, found, at, remains, local, calls, ghosts>>

\* The health check of the connection, every poll interval; or a grant found by looking (R7).
Health(p) ==
  /\ link[p] = "half" /\ pc[p] # "dead"
  /\ link' = [link EXCEPT ![p] = "down"]
  /\ db' = [db EXCEPT ![at[p]] = Unlink(@, p)]
  /\ UNCHANGED <<master, drift, pc, num, command, ticket, until, found, at, inbox, remains, local, calls, faults, ghosts>>

\* A process crashes, and its connections are closed; or its machine vanishes, and the server counts it still.
Crash(p) ==
  /\ pc[p] # "dead"
  /\ \/ Fault("crash")
     \/ (Fault("crash-holder") /\ pc[p] = "hold")
     \/ (Fault("crash-waiter") /\ pc[p] = "wait")
  /\ Over(p, "dead") /\ Idle(p) /\ Forget(p)
  /\ num' = [num EXCEPT ![p] = 0]
  /\ removal' = [removal EXCEPT ![p] = 0]
  /\ last' = [last EXCEPT ![p] = 0]
  /\ inbox' = [inbox EXCEPT ![p] = <<>>]
  /\ \/ /\ link' = [link EXCEPT ![p] = "down"]
        /\ db' = [db EXCEPT ![at[p]] = Unlink(@, p)]
     \/ /\ link' = [link EXCEPT ![p] = IF @ = "down" THEN @ ELSE "half"]
        /\ UNCHANGED db
  /\ UNCHANGED <<master, drift, at, seen, calls, ghosts>>

\* DEL by hand.
Delete ==
  /\ Fault("delete")
  /\ db[master].key # Nobody
  /\ Vanish(master, db[master])
  /\ UNCHANGED <<master, drift, pc, num, command, ticket, until, found, link, at, remains, local, calls, ghosts>>

\* What the replica has when it becomes the master: everything up to some moment. The old master goes on with those that
\* are connected to it.
Replicate ==
  /\ "failover" \in Faults /\ master = 1 /\ db[2] = Empty
  /\ db' = [db EXCEPT ![2] = [db[1] EXCEPT !.subs = {}, !.tracks = {}]]
  /\ db' # db
  /\ UNCHANGED <<master, drift, pc, num, command, ticket, until, found, wire, remains, local, calls, faults, ghosts>>
Failover ==
  /\ master = 1 /\ Fault("failover")
  /\ master' = 2
  /\ at' = [p \in Procs |-> IF p \in Java THEN 2 ELSE at[p]]
  /\ UNCHANGED <<db, drift, pc, num, command, ticket, until, found, link, inbox, remains, local, calls, ghosts>>

\* The connections lead to the new master. The last removal is sent once more (Registry.verifyHolds, Path.Recall).
Reconnect(p) ==
  /\ at[p] # master /\ pc[p] # "dead"
  /\ at' = [at EXCEPT ![p] = master]
  /\ link' = [link EXCEPT ![p] = "down"]
  /\ inbox' = [inbox EXCEPT ![p] = <<>>]
  /\ db' = [db EXCEPT ![at[p]] = Unlink(@, p)]
  /\ Unanswered(p, master)
  /\ first' = [first EXCEPT ![p] = FALSE]
  /\ last' = [last EXCEPT ![p] = 0]
  /\ UNCHANGED <<master, drift, base, soon, until, found, local, calls, faults, ghosts>>

-----------------------------------------------------------------------------
(* Time.                                                                    *)

\* Something that a process or the server does at once, when everything arrives at once.
Urgent(p) ==
  /\ pc[p] # "dead"
  /\ \/ cmd[p] # NoCmd
     \/ removal[p] > 0
     \/ link[p] = "up" /\ (inbox[p] # <<>> \/ (pc[p] = "wait" /\ first[p] /\ ~Lacks("track")))
     \/ pc[p] = "wait" /\ (timer[p] < 1 \/ link[p] = "down")
     \/ pc[p] = "hold" /\ until[p] = 0
     \/ pc[p] \in {"hold", "idle"} /\ WindowEvery > 0   \* where Q5 is asked, sections and pauses take no time

Waiting == \E p \in Go : pc[p] = "wait" /\ link[p] = "up"

Tick ==
  /\ Clock
  /\ \/ \E s \in Servers : db[s].ttl > 0 \/ db[s].open > 0
     \/ \E j \in Java : pc[j] = "wait" /\ timer[j] # Due
     \/ \E p \in Go : Believes(p) \/ (Looks = "due" /\ pc[p] = "wait" /\ timer[p] > 0)
  /\ LET prompt == late = {} /\ (\A p \in Go : ~Urgent(p)) /\ (\A j \in Java : pc[j] # "wait" \/ timer[j] # Due)
     IN IF prompt THEN UNCHANGED slow ELSE slow < Slow /\ slow' = slow + 1
  /\ LET expires(s) == db[s].ttl = 1
         down(x) == Max2(0, x - 1)
         older(D) == [D EXCEPT !.open = down(@), !.young = {}]
     IN /\ db' = [s \in Servers |->
                    IF s # 1 /\ s # master THEN db[s]
                    ELSE IF expires(s) THEN [NoKey(older(db[s])) EXCEPT !.tracks = {}]
                    ELSE [older(db[s]) EXCEPT !.ttl = down(@)]]
        /\ inbox' = [p \in Go |-> IF expires(at[p]) /\ p \in db[at[p]].tracks
                                  THEN Deliver(at[p], [x \in Go |-> <<Changed>>])[p] ELSE inbox[p]]
  /\ sent' = [p \in Go |-> IF cmd[p] = NoCmd THEN 0 ELSE Min2(sent[p] + 1, Lease)]
  /\ base' = [p \in Go |-> IF has[p] THEN Min2(base[p] + 1, Lease) ELSE Lease]
  /\ until' = [p \in Procs |-> Max2(0, until[p] - 1)]
  /\ LET sleeps(p) == Looks = "due" /\ pc[p] = "wait" /\ cmd[p] = NoCmd
     IN /\ timer' = [p \in Procs |-> IF p \in Java THEN Due
                                     ELSE IF ~sleeps(p) \/ timer[p] < 1 THEN timer[p]
                                     ELSE IF timer[p] = 1 THEN Due
                                     ELSE IF soon[p] THEN Awake ELSE timer[p] - 1]
        /\ soon' = [p \in Go |-> soon[p] /\ ~sleeps(p)]
  /\ untaken' = IF MaxUntaken > 0 /\ Waiting /\ ~(\E p \in Procs : Believes(p)) /\ db[master].open = 0
                THEN Min2(untaken + 1, MaxUntaken + 1) ELSE 0
  /\ idle' = IF MaxIdle > 0 /\ db[master].key = Nobody /\ db[master].open = 0
                /\ \E p \in Go : pc[p] = "wait" /\ link[p] = "up" /\ In(db[master].queue, <<p, num[p]>>)
             THEN Min2(idle + 1, MaxIdle + 1) ELSE 0
  /\ UNCHANGED <<master, drift, pc, num, cmd, has, first, found, link, at, remains, local, calls, faults>>

-----------------------------------------------------------------------------

Init ==
  /\ db = [s \in Servers |-> Empty]
  /\ master = 1
  /\ drift \in [Procs -> Drifts]
  /\ pc = [p \in Procs |-> "idle"]
  /\ num = [p \in Go |-> 0]
  /\ cmd = [p \in Go |-> NoCmd]
  /\ sent = [p \in Go |-> 0]
  /\ has = [p \in Go |-> FALSE]
  /\ base = [p \in Go |-> Lease]
  /\ until = [p \in Procs |-> 0]
  /\ timer = [p \in Procs |-> 1]
  /\ first = [p \in Go |-> FALSE]
  /\ soon = [p \in Go |-> FALSE]
  /\ found = [p \in Go |-> FALSE]
  /\ link = [p \in Go |-> "down"]
  /\ at = [p \in Procs |-> 1]
  /\ inbox = [p \in Go |-> <<>>]
  /\ late = {}
  /\ removal = [p \in Go |-> 0]
  /\ last = [p \in Go |-> 0]
  /\ more = [p \in Go |-> FALSE]
  /\ hands = [p \in Go |-> 0]
  /\ seen = [p \in Go |-> FALSE]
  /\ calls = 0
  /\ faults = 0
  /\ slow = 0
  /\ untaken = 0
  /\ idle = 0

\* What the library does by itself, and the server.
Works(p) ==
  \/ Listen(p) \/ Track(p) \/ Look(p) \/ Answered(p) \/ Receive(p) \/ Exec(p) \/ Sweep(p) \/ Lose(p) \/ Health(p)
  \/ Reconnect(p)

\* What its users do.
Uses(p) == Begin(p) \/ Renew(p) \/ Arrive(p) \/ HandOn(p) \/ Release(p) \/ Cancel(p)

Goes(p) == Works(p) \/ Uses(p) \/ Break(p) \/ Cut(p) \/ Crash(p)

JavaGoes(j) == JavaRelease(j) \/ JavaTry(j)

Next ==
  \/ \E p \in Go : Goes(p)
  \/ \E c \in late : ExecLate(c)
  \/ \E j \in Java : JavaBegin(j) \/ JavaGoes(j)
  \/ Delete \/ Replicate \/ Failover
  \/ Tick

Spec == Init /\ [][Next]_vars

\* Everything that is under way arrives, and time passes.
Progress ==
  \/ \E p \in Go : Works(p)
  \/ \E j \in Java : JavaGoes(j)
  \/ \E c \in late : ExecLate(c)
  \/ Tick

\* Everybody who holds the lock releases it.
Ends == \A p \in Go : WF_vars(HandOn(p) \/ Release(p))

\* Where the number of calls is limited, that something goes on is enough: in the end nothing else is left.
Live == Spec /\ WF_vars(Progress) /\ Ends

\* Without a limit each process goes on.
Endless == Spec /\ Ends /\ \A p \in Go : WF_vars(Works(p))

\* Where Q5 is asked, processes take the lock without end.
Busy == Spec /\ WF_vars(Progress \/ \E p \in Go : Begin(p) \/ HandOn(p) \/ Release(p))

-----------------------------------------------------------------------------
(* What must hold.                                                          *)

\* S1: at most one believes that it holds the path.
S1 == Cardinality({p \in Procs : Believes(p)}) <= 1

\* S3: who believes has the key, for at least as long.
S3 == \A p \in Go : Believes(p) => /\ db[master].key = <<p, num[p]>>
                                   /\ until[p] <= db[master].ttl

\* On behalf of which hold the server has just executed something. The next two look at steps, and these at both ends.
Executed ==
  {<<p, cmd[p].n>> : p \in {x \in Go : InFlight(cmd[x]) /\ cmd'[x].op = "reply"}}
  \cup {<<r.p, r.n>> : r \in late \ late'}
  \cup {<<p, removal[p]>> : p \in {x \in Go : removal[x] > 0 /\ num' = num /\ pc' = pc /\ cmd' = cmd /\ late' = late}}
  \cup {<<j, 1>> : j \in {x \in Java : pc'[x] # pc[x]}}

HeldBy(v) == v[1] \in Go /\ Believes(v[1]) /\ num[v[1]] = v[2]

\* S4: a command of an abandoned call changes nothing of a hold that somebody relies on.
S4 == [][\A r \in late \ late' : \A s \in Servers :
           HeldBy(db[s].key) => db'[s].key = db[s].key /\ db'[s].ttl >= db[s].ttl]_vars

\* S5: only the hold that set a key removes or renews it, or a later one of its registry when it is over. (A key may
\* expire, and somebody may delete it by hand.)
S5 == [][\A s \in Servers :
           LET v == db[s].key
           IN /\ v # Nobody
              /\ db'[s].key # v \/ db'[s].ttl > db[s].ttl
              /\ ~(db'[s].key = Nobody /\ db[s].ttl = 1)
              /\ ~("delete" \in Faults /\ faults' # faults)
              => \E e \in Executed : e[1] = v[1] /\ (e[2] = v[2] \/ (e[2] > v[2] /\ ~HeldBy(v)))]_vars

\* R4: the owner has no ticket any more.
Owner == \A s \in Servers : ~In(db[s].queue, db[s].key)

\* Q3: whatever a server does wakes no more than two processes that wait.
Q3 == [][Cardinality({p \in Go : pc[p] = "wait" /\ Len(inbox'[p]) > Len(inbox[p])}) <= 2]_vars

\* Q4: nobody gets the lock past a ticket whose process is there.
Q4 == [][\A s \in Servers :
           LET v == db'[s].key
           IN v[1] # db[s].key[1] /\ In(db[s].queue, v)
              => \A i \in 1..Rank(db[s].queue, v) : db[s].queue[i][1] \notin db[s].subs]_vars

\* Q6: a grant that was not lengthened by the grantee has no longer than the provisional lease; a ticket whose process is
\* gone is skipped; and a path is not blocked for long by what nobody relies on.
Q6 == \A s \in Servers : db[s].granted => db[s].ttl <= Provisional
Q6Gone == [][\A s \in Servers : db'[s].granted /\ db'[s].key # db[s].key => db'[s].key[1] \in db[s].subs]_vars
Q6Time == MaxUntaken > 0 => untaken <= MaxUntaken

\* Q8: a hold that its process does not want is about to be released by it.
Q8 == LET v == db[master].key
          p == v[1]
      IN p \in Go /\ pc[p] # "dead" /\ at[p] = master /\ (pc[p] = "idle" \/ num[p] # v[2])
         => \/ removal[p] >= v[2]
            \/ (pc[p] = "wait" /\ (timer[p] < 1 \/ InFlight(cmd[p])))
            \/ \E i \in 1..Len(inbox[p]) : inbox[p][i].m = "grant" /\ inbox[p][i].n = v[2]

\* Q9: a key that is free although a live ticket waits is noticed at once.
Q9 == MaxIdle > 0 => idle <= MaxIdle

\* A hold is told to be lost only when it is (without failovers).
Told == [][\A p \in Go : Believes(p) /\ until[p] > 1 /\ pc'[p] = "hold" /\ until'[p] = 0
                         => db[at[p]].key # <<p, num[p]>>]_vars

\* L1, L4: whoever waits gets the lock, or gives up. The processes are alike, so one stands for all.
Served == LET p == CHOOSE x \in Go : TRUE IN pc[p] \in {"wait", "sure"} ~> pc[p] \notin {"wait", "sure"}

\* No waiter sleeps while the key is free and nobody is about to take it. (This follows from Served for all.)
NoSleep == (db[master].key = Nobody /\ \E p \in Go : pc[p] = "wait")
           ~> (db[master].key # Nobody \/ \A p \in Go : pc[p] # "wait")

\* Q5: Java's turn comes while tickets keep the key taken without end. (Where nobody queues the key is free between one
\* hold and the next, and to have it then is a matter of luck, as it always was.)
Q5 == \A j \in Java : pc[j] = "wait" ~> (pc[j] = "hold" \/ (db[master].key = Nobody /\ db[master].queue = <<>>))

\* The same where releases leave a window only if somebody without a ticket may be there: from a try on there are no more grants than
\* there ever are before the next one.
Q5Soon == \A s \in Servers : db[s].passed <= WindowEvery + 1

Symmetry == Permutations(Go)
=============================================================================
