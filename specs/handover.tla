------------------------------ MODULE handover ------------------------------
(***************************************************************************)
(* Directed hand-over: how the waiters of one path queue in Redis, and how *)
(* a release makes the first of them the owner of the key. README.md says  *)
(* what is modelled and what is not, PROTOCOL.md what follows for the code.*)
(*                                                                         *)
(* A comment above an action or an operator names the function or script   *)
(* that it stands for. R1 to R18 and Q1 to Q11 are the rules and           *)
(* properties that PROTOCOL.md lists.                                      *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Go,           \* processes with this library: one registry, one path
  Java,         \* processes with Spring's: no ticket, one value for all their holds
  None,         \* no process
  Lease,        \* the lease of a hold, in ticks
  Provisional,  \* the lease of a grant until the grantee lengthens it
  Margin,       \* what a process takes off every lease (hold.go, margin)
  Drifts,       \* by how many ticks a process's clock may be late when a lease ends
  Window,       \* how long an open release keeps the key free, in ticks
  WindowEvery,  \* every so many turns a release is open; 0: never
  Handoff,      \* how often a hold may go on to the next goroutine of its process
  Faults,       \* what may go wrong or stop a call, see Fault
  MaxFaults,    \* how often
  MaxLate,      \* commands of abandoned calls that are on their way at a time
  Looks,        \* when a waiter looks by itself: "any" time, "due", or "never"
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
  base,     \* how long ago the last such command was sent (R3)
  until,    \* for how long the process may rely on its hold (hold.until)
  timer,    \* when the waiter looks again: in ticks; Due: its time has come; Awake: a message woke it
  first,    \* the waiter has been told that it is first, and does not listen to the key yet (R17)
  found,    \* the hold was found by looking: its grant message may still come
  link,     \* the connection for wake-ups: "up", "down", or "half": dead, and the server counts it still
  at,       \* the server that a process's connections lead to
  inbox,    \* messages on the connection for wake-ups, in order
  late,     \* commands of abandoned calls and broken connections; they may be executed at any time
  stray,    \* the largest number of a hold that is over and may be in Redis still (stray.go); 0: none
  last,     \* the last hold whose release was confirmed: sent once more after a reconnection (R15)
  more,     \* another goroutine of the process waits for the local half
  hands,    \* how often the hold went on to the next goroutine
  turns,    \* how many turns ago the last open release was, as the grant message said
  seen,     \* the last release found tickets: the next call does not try by SET NX first (R12)
  calls,    \* how many calls were begun, if they are counted
  faults,   \* how many faults there were
  slow,     \* how often time passed while something was under way
  untaken,  \* ghost: for how many ticks a key is there that nobody relies on, although somebody waits
  idle      \* ghost: for how many ticks the key has been free although a live ticket waits

vars == <<db, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, link, at, inbox, late, stray, last,
          more, hands, turns, seen, calls, faults, slow, untaken, idle>>

(***************************************************************************)
(* The states of a process's call (one at a time, by the local half):      *)
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
Min2(a, b) == IF a < b THEN a ELSE b
Max2(a, b) == IF a > b THEN a ELSE b

\* A queue without the tickets of a registry up to a number: its own, and those that it could not remove before (R4).
Strip(q, v) == SelectSeq(q, LAMBDA t : t[1] # v[1] \/ t[2] > v[2])
In(q, t) == \E i \in 1..Len(q) : q[i] = t
Rank(q, t) == (CHOOSE i \in 1..Len(q) : q[i] = t) - 1

-----------------------------------------------------------------------------
(* What a server does. An operator Run... is one script, atomic as scripts are; it gives the server's new state, the   *)
(* reply, and what is published to whom.                                                                            *)

Empty == [key |-> Nobody, ttl |-> 0,   \* the key's value, <<registry, number>>, and what its lease has left
          granted |-> FALSE,           \* ghost: by a release, and not lengthened since
          queue |-> <<>>,              \* <key>:waiters, the values of the tickets in order
          open |-> 0,                  \* the member of it that says for how long the key is open still
          subs |-> {},                 \* PUBSUB NUMSUB of the processes' channels
          tracks |-> {}]               \* who is to be told when the key changes

Quiet == [p \in Go |-> <<>>]
Grant(n, t) == [m |-> "grant", n |-> n, left |-> t]    \* you are the owner; left: turns since the last open release
First(n, left) == [m |-> "first", n |-> n, left |-> left] \* you are first now; look when this lease is over
Changed == [m |-> "changed", n |-> 0, left |-> 0]      \* tracking: the key changed
Dropped(n) == [m |-> "dropped", n |-> n, left |-> 0]   \* your ticket was taken out: look

Key(D, v, ttl, granted) == [D EXCEPT !.key = v, !.ttl = ttl, !.granted = granted]
NoKey(D) == Key(D, Nobody, 0, FALSE)

\* R1: only tickets whose channel has a subscriber are served, and the others removed.
Alive(D) == IF Lacks("numsub") THEN D.queue ELSE SelectSeq(D.queue, LAMBDA t : t[1] \in D.subs)

\* The part of spring_release.lua and spring_obtain.lua that serves the first ticket: remove the ticket, SET, PUBLISH.
\* Provisional is the lease of the grant (Q6). Two processes are told, whatever the length of the queue (Q3).
Serve(D, q, t) ==
  [db |-> [Key(D, q[1], IF Lacks("provisional") THEN Lease ELSE Provisional, TRUE)
             EXCEPT !.queue = IF Lacks("remove") THEN q ELSE Tail(q)],
   out |-> [p \in Go |->
              (IF p = q[1][1] THEN <<Grant(q[1][2], t)>> ELSE <<>>)
              \o (IF Len(q) > 1 /\ p = q[2][1] /\ ~Lacks("first")
                  THEN <<First(q[2][2], Provisional)>> ELSE <<>>)]]

\* What a release does with the key: a grant, an open release, or nobody waits. T: turns since the last open release.
Pass(D, t) ==
  LET q == Alive(D)
      opens == WindowEvery > 0 /\ (t >= WindowEvery \/ (D.open > 0 /\ ~Lacks("record")))
      left == IF D.open > 0 THEN D.open ELSE Window
  IN CASE q = <<>> -> [db |-> [NoKey(D) EXCEPT !.queue = q, !.open = 0], out |-> Quiet]
       [] q # <<>> /\ opens /\ ~Lacks("open") ->
            [db |-> [NoKey(D) EXCEPT !.queue = q, !.open = left],
             out |-> [p \in Go |-> IF p = q[1][1] THEN <<First(q[1][2], left)>> ELSE <<>>]]
       [] OTHER -> Serve([D EXCEPT !.queue = q, !.open = 0], q, IF WindowEvery > 0 THEN t + 1 ELSE 0)

Reply(D, re, left, out) ==
  [db |-> D, re |-> [op |-> "reply", to |-> re, left |-> left, rank |-> 0], out |-> out]

\* SET key value NX PX lease: the first try.
RunSetNX(D, r) ==
  IF D.key = Nobody THEN Reply(Key(D, <<r.p, r.n>>, Lease, FALSE), "granted", 0, Quiet)
  ELSE Reply(D, "taken", 0, Quiet)

Mine(D, r) == D.key[1] = r.p /\ D.key[2] <= r.n

Queued(D, v, out) ==
  [db |-> D, out |-> out,
   re |-> [op |-> "reply", to |-> "queued", rank |-> Rank(D.queue, v), left |-> IF D.key = Nobody THEN D.open ELSE D.ttl]]

\* V becomes the owner by its own command. The tickets in front of it had their time and did not take the key: they are
\* removed, and told.
Take(D, q, v) ==
  LET front == IF In(q, v) THEN SubSeq(q, 1, Rank(q, v)) ELSE <<>>
      rest == IF In(q, v) THEN SubSeq(q, Rank(q, v) + 2, Len(q)) ELSE q
      told(p) == {i \in 1..Len(front) : front[i][1] = p}
  IN Reply([Key(D, v, Lease, FALSE) EXCEPT !.queue = Strip(rest, v), !.open = 0], "granted", 0,
           [p \in Go |-> IF told(p) = {} THEN <<>> ELSE <<Dropped(front[Max(told(p))][2])>>])

\* What is common to the next two, for a ticket v that is in the queue: when the key is free, the first ticket is served,
\* or v itself when it is due (R5).
Ask(D, r, v) ==
  LET q == SelectSeq(D.queue, LAMBDA t : t = v \/ In(Alive(D), t))
  IN IF D.key # Nobody \/ (D.open > 0 /\ ~Lacks("record")) THEN Queued(D, v, Quiet)
     ELSE IF q[1] = v \/ (r.due /\ ~Lacks("due")) THEN Take(D, q, v)
     ELSE LET x == Serve([D EXCEPT !.queue = q], q, 0) IN Queued(x.db, v, x.out)

\* spring_obtain.lua, to queue: a new ticket comes last (R8), or takes the place of an older one of its registry.
RunObtain(D, r) ==
  LET v == <<r.p, r.n>>
      old == {i \in 1..Len(D.queue) : D.queue[i][1] = r.p /\ D.queue[i][2] <= r.n}
      q == IF old = {} THEN Append(D.queue, v)
           ELSE LET i == CHOOSE x \in old : \A y \in old : x <= y
                IN Strip(SubSeq(D.queue, 1, i - 1), v) \o <<v>> \o Strip(SubSeq(D.queue, i + 1, Len(D.queue)), v)
  IN CASE D.key[1] = r.p /\ D.key[2] > r.n /\ ~Lacks("order") -> Reply(D, "refused", 0, Quiet)   \* R4: late
       [] D.key = v -> Reply(D, "owner", D.ttl, Quiet)             \* only in a mutant: a number is used once
       [] D.key[1] = r.p /\ D.key # v -> Take(D, <<>> \o Strip(D.queue, v), v)   \* a grant that this call missed
       [] OTHER -> Ask([D EXCEPT !.queue = q], r, v)

\* The same script, to look and to refresh: it never adds a ticket.
RunLook(D, r) ==
  LET v == <<r.p, r.n>>
  IN CASE D.key = v -> Reply(D, "owner", D.ttl, Quiet)
       [] D.key[1] = r.p /\ D.key[2] > r.n -> Reply(D, "refused", 0, Quiet)
       [] D.key # v /\ ~(D.key[1] = r.p /\ D.key[2] > r.n) /\ ~In(D.queue, v) -> Reply(D, "missing", 0, Quiet)
       [] D.key[1] = r.p /\ D.key[2] < r.n /\ In(D.queue, v) -> Take(D, Strip(D.queue, v), v)
       [] OTHER -> Ask(D, r, v)

\* spring_release.lua: the end of a hold, and of a call that gives up (R10).
RunRelease(D, r) ==
  LET D1 == [D EXCEPT !.queue = Strip(@, <<r.p, r.n>>)]
      owner == IF Lacks("value") THEN D.key # Nobody ELSE Mine(D, r) /\ ~(Lacks("leave") /\ r.leave)
  IN IF owner
     THEN LET s == Pass(D1, r.turns) IN Reply(s.db, "done", Len(Alive(D1)), s.out)
     ELSE Reply(D1, "gone", 0, Quiet)

\* spring_renew.lua
RunRenew(D, r) ==
  IF D.key = <<r.p, r.n>> THEN Reply(Key(D, D.key, Lease, FALSE), "renewed", 0, Quiet) ELSE Reply(D, "gone", 0, Quiet)

Run(D, r) ==
  LET a == CASE r.op = "setnx" -> RunSetNX(D, r)
             [] r.op = "obtain" -> RunObtain(D, r)
             [] r.op = "look" -> RunLook(D, r)
             [] r.op = "release" -> RunRelease(D, r)
             [] r.op = "renew" -> RunRenew(D, r)
  IN IF a.db.key = D.key THEN a
     ELSE [a EXCEPT !.db.tracks = {},   \* the server tells of a change once
                    !.out = [p \in Go |-> @[p] \o IF p \in D.tracks THEN <<Changed>> ELSE <<>>]]

\* A message reaches whoever has a connection to this server that works.
Deliver(s, out) == [p \in Go |-> IF link[p] = "up" /\ at[p] = s THEN inbox[p] \o out[p] ELSE inbox[p]]

-----------------------------------------------------------------------------
(* Commands, and time as processes count it.                                *)

Request(p, op) == [op |-> op, p |-> p, n |-> num[p], s |-> at[p], due |-> FALSE, leave |-> FALSE, turns |-> 0]
InFlight(c) == c.op \in {"setnx", "obtain", "look", "release", "renew"}

\* For how long a hold may be relied on whose command was sent ago ticks ago, in ticks of the server: the process takes
\* the margin off, and its clock may be late by its drift.
Sure(p, length, ago) == Max2(0, length - (IF Lacks("margin") THEN 0 ELSE Margin) + drift[p] - ago)

Half == (Provisional + 1) \div 2

\* All that is left of a process's older calls, anywhere. A new number is larger than all of these. Numbers that have
\* left no trace can come again: nothing in the protocol compares with them, and so the state space is finite.
Traces(p) ==
  {num[p], stray[p], last[p]}
  \cup UNION {{db[s].key[2] : i \in IF db[s].key[1] = p THEN {1} ELSE {}} : s \in Servers}
  \cup UNION {{db[s].queue[i][2] : i \in {k \in 1..Len(db[s].queue) : db[s].queue[k][1] = p}} : s \in Servers}
  \cup {r.n : r \in {x \in late : x.p = p}}
  \cup {inbox[p][i].n : i \in 1..Len(inbox[p])}
Fresh(p) == IF Lacks("numbers") THEN 1 ELSE Max(Traces(p) \cup {0}) + 1

\* An attempt whose outcome is unknown, or that is over, is given up, and its number with it.
NoMore(p) == IF Lacks("fresh") THEN num[p] ELSE 0

Send(p, r) == /\ cmd' = [cmd EXCEPT ![p] = r]
              /\ sent' = [sent EXCEPT ![p] = 0]
Idle(p) == /\ cmd' = [cmd EXCEPT ![p] = NoCmd]
           /\ sent' = [sent EXCEPT ![p] = 0]

\* The command of a call that is given up may still be executed, or be lost.
Abandon(p) ==
  /\ Idle(p)
  /\ late' \in IF InFlight(cmd[p]) /\ Cardinality(late) < MaxLate THEN {late, late \cup {cmd[p]}} ELSE {late}

Fault(what) == what \in Faults /\ faults < MaxFaults /\ faults' = faults + 1

Believes(p) == pc[p] = "hold" /\ until[p] > 0

-----------------------------------------------------------------------------
(* A process's call.                                                        *)

Due == 0
Awake == -1
Asleep(left, rank) == IF Looks = "due" THEN left + rank + 1 ELSE 1

\* Lock.enter and Lock.obtain: the local half is free. Most locks are free, so the first try is a SET NX; not where the
\* last release was contended (R12).
Begin(p) ==
  /\ pc[p] = "idle"
  /\ Calls = 0 \/ calls < Calls
  /\ calls' = IF Calls = 0 THEN 0 ELSE calls + 1
  /\ IF seen[p] \/ ~FirstTry
     THEN /\ pc' = [pc EXCEPT ![p] = "wait"]
          /\ timer' = [timer EXCEPT ![p] = Awake]
          /\ UNCHANGED <<cmd, sent, num>>
     ELSE /\ pc' = [pc EXCEPT ![p] = "try"]
          /\ num' = [num EXCEPT ![p] = Fresh(p)]
          /\ Send(p, [Request(p, "setnx") EXCEPT !.n = Fresh(p)])
          /\ UNCHANGED timer
  /\ UNCHANGED <<last, db, master, drift, has, base, until, first, found, link, at, inbox, late, stray, more, hands, turns,
                 seen, faults, slow, untaken, idle>>

\* The package that listens: SUBSCRIBE to the process's channel, on a new connection.
Subscribe(p) ==
  /\ link' = [link EXCEPT ![p] = "up"]
  /\ db' = [db EXCEPT ![at[p]].subs = @ \cup {p}]
  /\ inbox' = [inbox EXCEPT ![p] = <<>>]

\* The same package: the first waiter has the server tell of every change of the key, and looks at what its lease has
\* left (PTTL on the tracking connection).
Track(p) ==
  /\ pc[p] = "wait" /\ first[p] /\ link[p] = "up" /\ ~Lacks("track")
  /\ first' = [first EXCEPT ![p] = FALSE]
  /\ db' = [db EXCEPT ![at[p]].tracks = @ \cup {p}]
  /\ timer' = [timer EXCEPT ![p] = IF @ < 1 THEN @
                                   ELSE IF db[at[p]].key # Nobody THEN Asleep(db[at[p]].ttl, 0)
                                   ELSE IF db[at[p]].open > 0 THEN @ ELSE Awake]
  /\ UNCHANGED <<last, master, drift, pc, num, cmd, sent, has, base, until, found, link, at, inbox, late, stray, more, hands, turns,
                 seen, calls, faults, slow, untaken, idle>>

\* acquisition.try: a waiter that is awake asks. Each command that can make a hold the owner, or a ticket, has a number
\* of its own. Before the first ticket it subscribes to its channel, and waits for the answer (R9). After each
\* subscription it looks (R7).
Subscribed(p) == link[p] # "down" \/ Lacks("subscribe")
Look(p) ==
  /\ pc[p] = "wait" /\ cmd[p] = NoCmd
  /\ timer[p] < 1 \/ Looks = "any" \/ ~Subscribed(p)
  /\ LET due == timer[p] = Due IN
       IF has[p]
       THEN Send(p, [Request(p, "look") EXCEPT !.due = due]) /\ UNCHANGED num
       ELSE LET n == IF Lacks("fresh") /\ num[p] > 0 THEN num[p] ELSE Fresh(p)
            IN Send(p, [Request(p, "obtain") EXCEPT !.due = due, !.n = n]) /\ num' = [num EXCEPT ![p] = n]
  /\ timer' = [timer EXCEPT ![p] = 1]
  /\ IF Subscribed(p) THEN UNCHANGED <<link, db, inbox>> ELSE Subscribe(p)
  /\ UNCHANGED <<last, master, drift, pc, has, base, until, first, found, at, late, stray, more, hands, turns, seen, calls,
                 faults, slow, untaken, idle>>

\* In a mutant: the subscription comes later.
Listen(p) ==
  /\ Lacks("subscribe")
  /\ pc[p] = "wait" /\ link[p] = "down" /\ has[p]
  /\ Subscribe(p)
  /\ UNCHANGED <<last, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, at, late, stray, more, hands,
                 turns, seen, calls, faults, slow, untaken, idle>>

NoTicket(p) == /\ has' = [has EXCEPT ![p] = FALSE]
               /\ base' = [base EXCEPT ![p] = Lease]
               /\ first' = [first EXCEPT ![p] = FALSE]

\* hold.grant: Lock returns, or, when too little of the lease is left, it was granted for nothing.
Held(p, length) ==
  /\ until' = [until EXCEPT ![p] = length]
  /\ pc' = [pc EXCEPT ![p] = IF length > 0 THEN "hold" ELSE "wait"]
  /\ timer' = [timer EXCEPT ![p] = IF length > 0 THEN 1 ELSE Awake]
  /\ NoTicket(p)
  /\ hands' = [hands EXCEPT ![p] = 0]

\* A grant with less than half of the provisional lease certain: renew before Lock returns (Q7).
Granted(p, length) ==
  IF length >= Half
  THEN Held(p, length) /\ Idle(p)
  ELSE /\ pc' = [pc EXCEPT ![p] = "sure"]
       /\ Send(p, Request(p, "renew"))
       /\ NoTicket(p)
       /\ UNCHANGED <<until, timer, hands>>

\* The reply to a command of the call that is under way.
Answered(p) ==
  LET c == cmd[p]
      ago == IF Lacks("sent") THEN 0 ELSE sent[p]
      full == Sure(p, Lease, ago)
  IN
  /\ c.op = "reply"
  /\ \/ /\ pc[p] = "try" /\ c.to = "taken"
        /\ pc' = [pc EXCEPT ![p] = "wait"]
        /\ timer' = [timer EXCEPT ![p] = Awake]
        /\ Idle(p)
        /\ UNCHANGED <<has, base, until, first, found, stray, more, hands, turns, seen>>
     \/ /\ pc[p] \in {"try", "wait"} /\ c.to = "granted"
        /\ Held(p, full) /\ Idle(p)
        /\ turns' = [turns EXCEPT ![p] = IF has[p] THEN WindowEvery ELSE 0]
        /\ UNCHANGED <<found, stray, more, seen>>
     \/ /\ pc[p] = "wait" /\ c.to = "owner"          \* R3: a reply with p milliseconds left counts as sent + p
        /\ Granted(p, Sure(p, c.left, ago))
        /\ found' = [found EXCEPT ![p] = TRUE]
        /\ turns' = [turns EXCEPT ![p] = WindowEvery] \* R12: lost means due
        /\ UNCHANGED <<stray, more, seen>>
     \/ /\ pc[p] = "wait" /\ c.to = "queued"         \* R3: the ticket was still in the queue
        /\ has' = [has EXCEPT ![p] = TRUE]
        /\ base' = [base EXCEPT ![p] = ago]
        /\ timer' = [timer EXCEPT ![p] = IF @ < 1 THEN @ ELSE Asleep(c.left, c.rank)]
        /\ first' = [first EXCEPT ![p] = @ \/ c.rank = 0 \/ Lacks("one")]
        /\ Idle(p)
        /\ UNCHANGED <<pc, until, found, stray, more, hands, turns, seen>>
     \/ /\ pc[p] = "wait" /\ c.to \in {"missing", "refused"}   \* expired, dropped, lost in a failover: queue anew
        /\ has' = [has EXCEPT ![p] = FALSE]
        /\ base' = [base EXCEPT ![p] = Lease]
        /\ timer' = [timer EXCEPT ![p] = Awake]
        /\ Idle(p)
        /\ UNCHANGED <<pc, until, first, found, stray, more, hands, turns, seen>>
     \/ /\ pc[p] = "sure" /\ c.to = "renewed"
        /\ Held(p, full) /\ Idle(p)
        /\ UNCHANGED <<found, stray, more, turns, seen>>
     \/ /\ pc[p] = "sure" /\ c.to = "gone"           \* the grant is over: wait again
        /\ pc' = [pc EXCEPT ![p] = "wait"]
        /\ timer' = [timer EXCEPT ![p] = Awake]
        /\ found' = [found EXCEPT ![p] = FALSE]
        /\ Idle(p)
        /\ UNCHANGED <<has, base, until, first, stray, more, hands, turns, seen>>
     \/ /\ pc[p] = "hold" /\ c.to = "renewed"        \* hold.answered: what is over is not revived (S6)
        /\ until' = [until EXCEPT ![p] = IF @ > 0 THEN Max2(@, full) ELSE 0]
        /\ Idle(p)
        /\ UNCHANGED <<pc, has, base, timer, first, found, stray, more, hands, turns, seen>>
     \/ /\ pc[p] = "hold" /\ c.to = "gone"
        /\ until' = [until EXCEPT ![p] = 0]
        /\ Idle(p)
        /\ UNCHANGED <<pc, has, base, timer, first, found, stray, more, hands, turns, seen>>
     \/ /\ \/ pc[p] = "hold" /\ c.to \in {"queued", "owner", "granted", "missing", "refused"}
           \/ pc[p] = "sure" /\ c.to \in {"queued", "owner", "granted", "missing", "refused"}
        /\ Idle(p)                                   \* of a look that the grant message has overtaken
        /\ UNCHANGED <<pc, has, base, until, timer, first, found, stray, more, hands, turns, seen>>
     \/ /\ pc[p] = "free"                            \* Lock.release: only now is the local half free
        /\ pc' = [pc EXCEPT ![p] = "idle"]
        /\ Idle(p)
        /\ seen' = [seen EXCEPT ![p] = FirstTry /\ WindowEvery > 0 /\ c.left > 0]
        /\ UNCHANGED <<has, base, until, timer, first, found, stray, more, hands, turns>>
  /\ num' = [num EXCEPT ![p] = IF pc[p] = "free" THEN 0
                               ELSE IF pc[p] = "try" /\ c.to = "taken" THEN 0
                               ELSE IF pc[p] = "wait" /\ c.to \in {"missing", "refused"} THEN NoMore(p) ELSE @]
  /\ last' = [last EXCEPT ![p] = IF pc[p] = "free" /\ "failover" \in Faults /\ ~Lacks("twice") THEN num[p] ELSE @]
  /\ UNCHANGED <<db, master, drift, link, at, inbox, late, calls, faults, slow, untaken, idle>>

\* hold.renew, by the owner, the scheduler, or to lengthen a provisional lease (R11).
Renew(p) ==
  /\ Believes(p) /\ cmd[p] = NoCmd /\ until[p] <= Half
  /\ Send(p, Request(p, "renew"))
  /\ UNCHANGED <<last, db, master, drift, pc, num, has, base, until, timer, first, found, link, at, inbox, late, stray, more, hands,
                 turns, seen, calls, faults, slow, untaken, idle>>

\* Another goroutine of this process comes, and Lock.release hands the hold to it. The number stays.
Arrive(p) ==
  /\ Handoff > 0 /\ pc[p] = "hold" /\ ~more[p]
  /\ more' = [more EXCEPT ![p] = TRUE]
  /\ UNCHANGED <<last, db, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, link, at, inbox, late, stray,
                 hands, turns, seen, calls, faults, slow, untaken, idle>>
HandOn(p) ==
  /\ Believes(p) /\ more[p] /\ until[p] >= Half /\ (hands[p] < Handoff \/ Lacks("limit"))
  /\ more' = [more EXCEPT ![p] = FALSE]
  /\ hands' = [hands EXCEPT ![p] = Min2(@ + 1, Handoff)]
  /\ UNCHANGED <<last, db, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, link, at, inbox, late, stray,
                 turns, seen, calls, faults, slow, untaken, idle>>

\* What a call that is over leaves: a command that may still be executed, and what the sweep removes.
Over(p, state) ==
  /\ pc' = [pc EXCEPT ![p] = state]
  /\ until' = [until EXCEPT ![p] = 0]
  /\ NoTicket(p)
  /\ timer' = [timer EXCEPT ![p] = 1]
  /\ found' = [found EXCEPT ![p] = FALSE]
  /\ more' = [more EXCEPT ![p] = FALSE]
  /\ hands' = [hands EXCEPT ![p] = 0]
  /\ turns' = [turns EXCEPT ![p] = 0]

\* Lock.release, of the last owner in this process. What is under way of this hold may be executed after it.
Release(p) ==
  /\ Believes(p)
  /\ ~more[p] \/ until[p] < Half \/ (hands[p] = Handoff /\ ~Lacks("limit"))
  /\ Over(p, "free")
  /\ Send(p, [Request(p, "release") EXCEPT !.turns = turns[p]])
  /\ late' \in IF InFlight(cmd[p]) /\ Cardinality(late) < MaxLate THEN {late, late \cup {cmd[p]}} ELSE {late}
  /\ stray' = [stray EXCEPT ![p] = IF \E r \in late' : r.p = p /\ r.n = num[p] THEN num[p] ELSE @]
  /\ UNCHANGED <<last, db, master, drift, num, link, at, inbox, seen, calls, faults, slow, untaken, idle>>

\* The hold is lost, and its owner told (hold.unlockLose). What it left in Redis is removed by its Unlock.
Lose(p) ==
  /\ pc[p] = "hold" /\ until[p] = 0
  /\ Over(p, "idle") /\ Abandon(p)
  /\ num' = [num EXCEPT ![p] = 0]
  /\ stray' = [stray EXCEPT ![p] = Max2(@, num[p])]
  /\ UNCHANGED <<last, db, master, drift, link, at, inbox, seen, calls, faults, slow, untaken, idle>>

\* A call gives up, at any point: its context, its wait, Close. It leaves the queue (R10): like everything that a call
\* leaves behind, its ticket is the sweep's.
Cancel(p) ==
  /\ pc[p] \in {"try", "wait", "sure"}
  /\ Fault("cancel")
  /\ Over(p, "idle") /\ Abandon(p)
  /\ num' = [num EXCEPT ![p] = 0]
  /\ stray' = [stray EXCEPT ![p] = IF Lacks("sweep") THEN 0 ELSE Max2(@, num[p])]
  /\ UNCHANGED <<last, db, master, drift, link, at, inbox, seen, calls, slow, untaken, idle>>

-----------------------------------------------------------------------------
(* Messages.                                                                *)

Receive(p) ==
  LET m == Head(inbox[p])
      waited == pc[p] = "wait" /\ m.n = num[p]
  IN
  /\ inbox[p] # <<>> /\ link[p] = "up"
  /\ inbox' = [inbox EXCEPT ![p] = Tail(@)]
  /\ \/ /\ m.m = "grant" /\ waited
        /\ turns' = [turns EXCEPT ![p] = m.left]
        /\ LET length == Sure(p, Provisional, IF Lacks("grant") THEN 0 ELSE base[p])
           IN IF length >= Half
              THEN Held(p, length) /\ UNCHANGED <<cmd, sent, late>>
              ELSE /\ pc' = [pc EXCEPT ![p] = "sure"]
                   /\ Send(p, Request(p, "renew"))
                   /\ late' \in IF InFlight(cmd[p]) /\ Cardinality(late) < MaxLate
                                THEN {late, late \cup {cmd[p]}} ELSE {late}
                   /\ NoTicket(p)
                   /\ UNCHANGED <<until, timer, hands>>
        /\ UNCHANGED <<found, stray, more, seen>>
     \/ /\ m.m = "grant" /\ pc[p] \in {"hold", "sure"} /\ m.n = num[p]
        /\ IF found[p] /\ ~Lacks("found")
           THEN /\ found' = [found EXCEPT ![p] = FALSE]   \* the message of the grant that it found by looking
                /\ turns' = [turns EXCEPT ![p] = m.left]
                /\ UNCHANGED until
           ELSE /\ until' = [until EXCEPT ![p] = 0]       \* R4: granted twice, so this hold is lost
                /\ UNCHANGED <<found, turns>>
        /\ UNCHANGED <<pc, cmd, sent, late, has, base, first, timer, hands, stray, more, seen>>
     \/ /\ m.m = "grant" /\ pc[p] = "wait" /\ ~waited        \* of an attempt whose reply was lost: the next takes over
        /\ timer' = [timer EXCEPT ![p] = Awake]
        /\ UNCHANGED <<pc, cmd, sent, late, has, base, until, first, found, stray, more, hands, turns, seen>>
     \/ /\ m.m = "grant" /\ pc[p] # "wait" /\ ~(pc[p] \in {"hold", "sure"} /\ m.n = num[p])
        /\ stray' = [stray EXCEPT ![p] = Max2(@, m.n)] \* R4: nobody waits for it
        /\ UNCHANGED <<pc, cmd, sent, late, has, base, until, timer, first, found, more, hands, turns, seen>>
     \/ /\ m.m = "first"
        /\ IF waited
           THEN /\ first' = [first EXCEPT ![p] = TRUE]
                /\ timer' = [timer EXCEPT ![p] = IF @ < 1 THEN @ ELSE Asleep(m.left, 0)]
           ELSE UNCHANGED <<first, timer>>
        /\ UNCHANGED <<pc, cmd, sent, late, has, base, until, found, stray, more, hands, turns, seen>>
     \/ /\ m.m \in {"changed", "dropped"}
        /\ timer' = [timer EXCEPT ![p] = IF pc[p] = "wait" /\ (m.m = "changed" \/ waited) THEN Awake ELSE @]
        /\ UNCHANGED <<pc, cmd, sent, late, has, base, until, first, found, stray, more, hands, turns, seen>>
  /\ UNCHANGED <<last, db, master, drift, num, link, at, calls, faults, slow, untaken, idle>>

-----------------------------------------------------------------------------
(* The server executes what has arrived.                                    *)

\* The command of a call.
Exec(p) ==
  /\ InFlight(cmd[p])
  /\ LET s == cmd[p].s
         a == Run(db[s], cmd[p])
     IN /\ db' = [db EXCEPT ![s] = a.db]
        /\ cmd' = [cmd EXCEPT ![p] = a.re]
        /\ inbox' = Deliver(s, a.out)
  /\ UNCHANGED <<last, master, drift, pc, num, sent, has, base, until, timer, first, found, link, at, late, stray, more, hands, turns,
                 seen, calls, faults, slow, untaken, idle>>

\* A command whose call does not wait for it any more, or whose connection is gone.
ExecLate(r) ==
  /\ r \in late
  /\ late' = late \ {r}
  /\ LET a == Run(db[r.s], r)
     IN /\ db' = [db EXCEPT ![r.s] = a.db]
        /\ inbox' = Deliver(r.s, a.out)
  /\ UNCHANGED <<last, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, link, at, stray, more, hands, turns,
                 seen, calls, faults, slow, untaken, idle>>

\* scheduler.sweep: the removal of what a call has left, again and again until nothing of it can come any more.
Sweep(p) ==
  /\ stray[p] > 0 /\ pc[p] # "dead"
  /\ LET a == Run(db[at[p]], [Request(p, "release") EXCEPT !.n = stray[p], !.leave = TRUE])
     IN /\ db' = [db EXCEPT ![at[p]] = a.db]
        /\ inbox' = Deliver(at[p], a.out)
  /\ stray' = [stray EXCEPT ![p] = IF ~Lacks("watch") /\ \E r \in late : r.p = p /\ r.n <= @ THEN @ ELSE 0]
  /\ last' = [last EXCEPT ![p] = IF "failover" \in Faults /\ ~Lacks("twice") THEN Max2(@, stray[p]) ELSE @]
  /\ UNCHANGED <<master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, link, at, late, more, hands, turns,
                 seen, calls, faults, slow, untaken, idle>>

-----------------------------------------------------------------------------
(* Java.                                                                    *)

JavaBegin(j) ==
  /\ pc[j] = "idle"
  /\ Calls = 0 \/ calls < Calls
  /\ calls' = IF Calls = 0 THEN 0 ELSE calls + 1
  /\ pc' = [pc EXCEPT ![j] = "wait"]
  /\ timer' = [timer EXCEPT ![j] = Due]
  /\ UNCHANGED <<last, db, master, drift, num, cmd, sent, has, base, until, first, found, link, at, inbox, late, stray, more, hands,
                 turns, seen, faults, slow, untaken, idle>>

\* RedisLockRegistry's obtain script, which its spin lock runs every poll interval: here once in every tick.
JavaTry(j) ==
  /\ pc[j] = "wait" /\ timer[j] = Due
  /\ timer' = [timer EXCEPT ![j] = IF Clock /\ db[at[j]].key # Nobody THEN 1 ELSE @]
  /\ IF db[at[j]].key = Nobody
     THEN /\ pc' = [pc EXCEPT ![j] = "hold"]
          /\ until' = [until EXCEPT ![j] = Sure(j, Lease, 0)]
          /\ LET D == db[at[j]]
             IN /\ db' = [db EXCEPT ![at[j]] = [Key(D, <<j, 1>>, Lease, FALSE) EXCEPT !.tracks = {}]]
                /\ inbox' = Deliver(at[j], [p \in Go |-> IF p \in D.tracks THEN <<Changed>> ELSE <<>>])
     ELSE Clock /\ UNCHANGED <<pc, until, db, inbox>>
  /\ UNCHANGED <<last, master, drift, num, cmd, sent, has, base, first, found, link, at, late, stray, more, hands, turns, seen, calls,
                 faults, slow, untaken, idle>>

\* Its release script: it removes the key if it has its value, and knows no queue. A lease that is over is the end, too.
JavaRelease(j) ==
  /\ pc[j] = "hold"
  /\ pc' = [pc EXCEPT ![j] = "idle"]
  /\ until' = [until EXCEPT ![j] = 0]
  /\ LET D == db[at[j]]
     IN IF D.key = <<j, 1>>
        THEN /\ db' = [db EXCEPT ![at[j]] = [NoKey(D) EXCEPT !.tracks = {}]]
             /\ inbox' = Deliver(at[j], [p \in Go |-> IF p \in D.tracks THEN <<Changed>> ELSE <<>>])
        ELSE UNCHANGED <<db, inbox>>
  /\ UNCHANGED <<last, master, drift, num, cmd, sent, has, base, timer, first, found, link, at, late, stray, more, hands, turns, seen,
                 calls, faults, slow, untaken, idle>>

-----------------------------------------------------------------------------
(* What goes wrong. Each costs one of MaxFaults.                            *)

\* The reply is lost, or the command, or it is executed later: the connection broke. The call asks again.
Break(p) ==
  /\ cmd[p] # NoCmd /\ pc[p] # "dead"
  /\ Fault("break")
  /\ late' \in IF InFlight(cmd[p]) /\ Cardinality(late) < MaxLate THEN {late, late \cup {cmd[p]}} ELSE {late}
  /\ pc' = [pc EXCEPT ![p] = IF @ = "try" THEN "wait" ELSE @]
  /\ timer' = [timer EXCEPT ![p] = IF pc[p] \in {"try", "wait"} THEN Awake ELSE @]
  /\ stray' = [stray EXCEPT ![p] = IF cmd[p].op \in {"setnx", "obtain"} \/ (cmd[p].op = "reply" /\ ~has[p] /\ pc[p] \in {"try", "wait"})
                                  THEN Max2(@, num[p]) ELSE @]
  /\ num' = [num EXCEPT ![p] = IF pc[p] \in {"try", "wait"} /\ ~has[p] THEN NoMore(p) ELSE @]
  /\ IF pc[p] \in {"free", "sure"}
     THEN Send(p, IF pc[p] = "free" THEN Request(p, "release") ELSE Request(p, "renew"))
     ELSE Idle(p)
  /\ UNCHANGED <<last, db, master, drift, has, base, until, first, found, link, at, inbox, more, hands, turns, seen, calls,
                 slow, untaken, idle>>

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
  /\ UNCHANGED <<last, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, at, late, stray, more, hands, turns,
                 seen, calls, slow, untaken, idle>>

\* The health check of the connection, every poll interval; or a grant found by looking (R7).
Health(p) ==
  /\ link[p] = "half" /\ pc[p] # "dead"
  /\ link' = [link EXCEPT ![p] = "down"]
  /\ db' = [db EXCEPT ![at[p]] = Unlink(@, p)]
  /\ UNCHANGED <<last, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, at, inbox, late, stray, more, hands,
                 turns, seen, calls, faults, slow, untaken, idle>>

\* A process crashes, and its connections are closed; or its machine vanishes, and the server counts it still.
Crash(p) ==
  /\ pc[p] # "dead"
  /\ \/ Fault("crash")
     \/ (Fault("crash-holder") /\ pc[p] = "hold")
     \/ (Fault("crash-waiter") /\ pc[p] = "wait")
  /\ Over(p, "dead") /\ Abandon(p)
  /\ num' = [num EXCEPT ![p] = 0]
  /\ stray' = [stray EXCEPT ![p] = 0]
  /\ last' = [last EXCEPT ![p] = 0]
  /\ inbox' = [inbox EXCEPT ![p] = <<>>]
  /\ \/ /\ link' = [link EXCEPT ![p] = "down"]
        /\ db' = [db EXCEPT ![at[p]] = Unlink(@, p)]
     \/ /\ link' = [link EXCEPT ![p] = IF @ = "down" THEN @ ELSE "half"]
        /\ UNCHANGED db
  /\ UNCHANGED <<master, drift, at, seen, calls, slow, untaken, idle>>

\* DEL by hand.
Delete ==
  /\ Fault("delete")
  /\ db[master].key # Nobody
  /\ LET D == db[master]
     IN /\ db' = [db EXCEPT ![master] = [NoKey(D) EXCEPT !.tracks = {}]]
        /\ inbox' = Deliver(master, [p \in Go |-> IF p \in D.tracks THEN <<Changed>> ELSE <<>>])
  /\ UNCHANGED <<last, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, link, at, late, stray, more, hands,
                 turns, seen, calls, slow, untaken, idle>>

\* What the replica has when it becomes the master: everything up to some moment. The old master goes on with those that
\* are connected to it.
Replicate ==
  /\ "failover" \in Faults /\ master = 1 /\ db[2] = Empty
  /\ db' = [db EXCEPT ![2] = [db[1] EXCEPT !.subs = {}, !.tracks = {}]]
  /\ db' # db
  /\ UNCHANGED <<last, master, drift, pc, num, cmd, sent, has, base, until, timer, first, found, link, at, inbox, late, stray, more,
                 hands, turns, seen, calls, faults, slow, untaken, idle>>
Failover ==
  /\ master = 1 /\ Fault("failover")
  /\ master' = 2
  /\ at' = [p \in Procs |-> IF p \in Java THEN 2 ELSE at[p]]
  /\ UNCHANGED <<last, db, drift, pc, num, cmd, sent, has, base, until, timer, first, found, link, inbox, late, stray, more, hands,
                 turns, seen, calls, slow, untaken, idle>>
Reconnect(p) ==
  /\ at[p] # master /\ pc[p] # "dead"
  /\ at' = [at EXCEPT ![p] = master]
  /\ link' = [link EXCEPT ![p] = "down"]
  /\ inbox' = [inbox EXCEPT ![p] = <<>>]
  /\ db' = [db EXCEPT ![at[p]] = Unlink(@, p)]
  /\ late' \in IF InFlight(cmd[p]) /\ Cardinality(late) < MaxLate THEN {late, late \cup {cmd[p]}} ELSE {late}
  /\ pc' = [pc EXCEPT ![p] = IF @ = "try" THEN "wait" ELSE @]
  /\ timer' = [timer EXCEPT ![p] = IF pc[p] \in {"try", "wait"} THEN Awake ELSE @]
  /\ first' = [first EXCEPT ![p] = FALSE]
  /\ IF pc[p] \in {"free", "sure"} /\ cmd[p] # NoCmd
     THEN Send(p, [(IF pc[p] = "free" THEN Request(p, "release") ELSE Request(p, "renew")) EXCEPT !.s = master])
     ELSE Idle(p)
  /\ stray' = [stray EXCEPT ![p] = Max2(@, last[p])]
  /\ last' = [last EXCEPT ![p] = 0]
  /\ UNCHANGED <<master, drift, num, has, base, until, found, more, hands, turns, seen, calls, faults, slow, untaken, idle>>

-----------------------------------------------------------------------------
(* Time.                                                                    *)

\* Something that a process or the server does at once, when everything arrives at once.
Urgent(p) ==
  /\ pc[p] # "dead"
  /\ \/ cmd[p] # NoCmd
     \/ stray[p] > 0
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
     IN /\ db' = [s \in Servers |->
                    IF s # 1 /\ s # master THEN db[s]
                    ELSE IF expires(s) THEN [NoKey(db[s]) EXCEPT !.tracks = {}]
                    ELSE [db[s] EXCEPT !.ttl = down(@), !.open = IF db[s].key = Nobody THEN down(@) ELSE @]]
        /\ inbox' = [p \in Go |-> IF expires(at[p]) /\ p \in db[at[p]].tracks /\ link[p] = "up"
                                  THEN Append(inbox[p], Changed) ELSE inbox[p]]
  /\ sent' = [p \in Go |-> IF cmd[p] = NoCmd THEN 0 ELSE Min2(sent[p] + 1, Lease)]
  /\ base' = [p \in Go |-> IF has[p] THEN Min2(base[p] + 1, Lease) ELSE Lease]
  /\ until' = [p \in Procs |-> Max2(0, until[p] - 1)]
  /\ timer' = [p \in Procs |-> IF p \in Java THEN Due
                               ELSE IF Looks = "due" /\ pc[p] = "wait" /\ timer[p] > 0 THEN timer[p] - 1 ELSE timer[p]]
  /\ untaken' = IF MaxUntaken > 0 /\ Waiting /\ ~(\E p \in Procs : Believes(p)) /\ db[master].open = 0
                THEN Min2(untaken + 1, MaxUntaken + 1) ELSE 0
  /\ idle' = IF MaxIdle > 0 /\ db[master].key = Nobody /\ db[master].open = 0
                /\ \E p \in Go : pc[p] = "wait" /\ link[p] = "up" /\ In(db[master].queue, <<p, num[p]>>)
             THEN Min2(idle + 1, MaxIdle + 1) ELSE 0
  /\ UNCHANGED <<last, master, drift, pc, num, cmd, has, first, found, link, at, late, stray, more, hands, turns, seen, calls, faults>>

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
  /\ found = [p \in Go |-> FALSE]
  /\ link = [p \in Go |-> "down"]
  /\ at = [p \in Procs |-> 1]
  /\ inbox = [p \in Go |-> <<>>]
  /\ late = {}
  /\ stray = [p \in Go |-> 0]
  /\ last = [p \in Go |-> 0]
  /\ more = [p \in Go |-> FALSE]
  /\ hands = [p \in Go |-> 0]
  /\ turns = [p \in Go |-> 0]
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

Next ==
  \/ \E p \in Go : Goes(p)
  \/ \E r \in late : ExecLate(r)
  \/ \E j \in Java : JavaBegin(j) \/ JavaTry(j) \/ JavaRelease(j)
  \/ Delete \/ Replicate \/ Failover
  \/ Tick

Spec == Init /\ [][Next]_vars

\* Everything that is under way arrives, everybody who holds the lock releases it, and time passes.
Fair ==
  /\ \A p \in Go :
       /\ WF_vars(Listen(p)) /\ WF_vars(Track(p)) /\ WF_vars(Look(p)) /\ WF_vars(Answered(p)) /\ WF_vars(Receive(p))
       /\ WF_vars(Exec(p)) /\ WF_vars(Sweep(p)) /\ WF_vars(Lose(p)) /\ WF_vars(Health(p)) /\ WF_vars(Reconnect(p))
       /\ WF_vars(HandOn(p) \/ Release(p))
  /\ \A j \in Java : WF_vars(JavaRelease(j)) /\ WF_vars(JavaTry(j))
  /\ WF_vars(\E r \in late : ExecLate(r))
  /\ WF_vars(Tick)

Live == Spec /\ Fair

\* Where Q5 is asked, processes take the lock without end.
Busy == Live /\ \A p \in Go : WF_vars(Begin(p))

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
  \cup {<<p, stray[p]>> : p \in {x \in Go : stray[x] > 0 /\ num' = num /\ pc' = pc /\ cmd' = cmd /\ late' = late}}
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

\* Q6: a grant that was not lengthened by the grantee has no longer than the provisional lease; a ticket whose process is
\* gone is skipped; and a path is not blocked for long by what nobody relies on.
Q6 == \A s \in Servers : db[s].granted => db[s].ttl <= Provisional
Q6Gone == [][\A s \in Servers : db'[s].granted /\ db'[s].key # db[s].key => db'[s].key[1] \in db[s].subs]_vars
Q6Time == MaxUntaken > 0 => untaken <= MaxUntaken

\* Q8: a hold that its process does not want is about to be released by it.
Q8 == LET v == db[master].key
          p == v[1]
      IN p \in Go /\ pc[p] # "dead" /\ at[p] = master /\ (pc[p] = "idle" \/ num[p] # v[2])
         => \/ stray[p] >= v[2]
            \/ (pc[p] = "wait" /\ (timer[p] < 1 \/ InFlight(cmd[p])))
            \/ \E i \in 1..Len(inbox[p]) : inbox[p][i].m = "grant" /\ inbox[p][i].n = v[2]

\* Q9: a key that is free although a live ticket waits is noticed at once.
Q9 == MaxIdle > 0 => idle <= MaxIdle

\* A hold is told to be lost only when it is (without failovers).
Told == [][\A p \in Go : Believes(p) /\ until[p] > 1 /\ pc'[p] = "hold" /\ until'[p] = 0
                         => db[at[p]].key # <<p, num[p]>>]_vars

\* L1, L4, and no waiter sleeps while the key is free and nobody is about to take it: whoever waits gets the lock.
Served == \A p \in Go : pc[p] \in {"wait", "sure"} ~> pc[p] \notin {"wait", "sure"}
NoSleep == (db[master].key = Nobody /\ \E p \in Go : pc[p] = "wait")
           ~> (db[master].key # Nobody \/ \A p \in Go : pc[p] # "wait")

\* Q5: Java's turn comes while tickets keep the key taken without end. (Where nobody queues the key is free between one
\* hold and the next, and to have it then is a matter of luck, as it always was.)
Q5 == \A j \in Java : pc[j] = "wait" ~> (pc[j] = "hold" \/ (db[master].key = Nobody /\ db[master].queue = <<>>))

Symmetry == Permutations(Go)
=============================================================================
