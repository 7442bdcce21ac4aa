package main

// The texts for --help, in lines of 80 characters: the common case first, then what may surprise, then exit codes.
const (
	rootHelp = `Something hangs?

  lockreg ls PREFIX             lists the locks, the longest queue first
  lockreg deadlocks PREFIX      finds calls that wait for each other
  lockreg show PREFIX PATH      shows who holds a lock, and who waits for it
  lockreg release PREFIX PATH   frees the lock of a holder that is gone

lockreg shows which locks are held in Redis and who waits for them, frees the
locks of holders that are gone, and runs a command under a lock.

--url or REDIS_URL says where Redis is:

  redis://user:password@host:6379/0          one server
  redis://host:6379?addr=host2:6379          a cluster
  redis://host:26379?master_set=mymaster     Sentinel
  rediss://host:6379                         TLS
  unix:///run/redis.sock                     a socket

The password of the address is for servers. Sentinels that ask for one get that
of LOCKREG_SENTINEL_PASSWORD, and the user of LOCKREG_SENTINEL_USER.

The lock of PATH is the key PREFIX:PATH. Shells complete both.

This page says what each alert, log line and banner means, and what to do:
https://github.com/lockregistry/lockregistry/blob/main/docs/oncall.md

Exit codes: 0 success, 64 a mistake on the command line, 69 Redis cannot be
used. The help of each command lists its other codes.`

	runHelp = `Waits for the lock, runs the command, and releases the lock. The lease of the
lock is renewed while the command runs.

The command is started directly, without a shell. It has the standard input,
output and error of lockreg, and finds in its environment:

  LOCKREG_KEY     the key of the lock
  LOCKREG_TOKEN   its fencing token, which is larger than those of all earlier
                  holders. Pass it on with each write, and have the resource
                  reject smaller ones. It is not set with --shared, with
                  --fencing=false, or with --layout redisson unless
                  --fencing is given.

REDIS_URL is left out, since it may contain a password, and so is what Sentinels
are told: --pass-redis-url keeps them.

The command has a process group of its own:

  - INT, TERM, HUP, QUIT, USR1 and USR2 go to the whole group. INT and TERM do
    not end lockreg before the command.
  - The lock is released when all processes of the group have ended, including
    those that the command has left in the background.
  - Processes that leave the group, as daemons do, are neither waited for nor
    killed.

What ends the command:

  - The lease cannot be renewed: the group gets TERM when --grace is left of the
    lease, and KILL when the lease is over. So nothing works when another
    process may have the lock.
  - The lock is taken away, by lockreg release or because a server has lost it:
    the group gets TERM as soon as that is known, which may take a third of the
    lease, and KILL after --grace.
  - lockreg is killed: the group is killed, too. The lock becomes free when its
    lease ends.

If lockreg alone is stopped for longer than the lease, the command keeps running
past the lease, and gets KILL later. LOCKREG_TOKEN protects against its late
writes.

As process 1 of a container, lockreg reaps orphaned processes.

With --once the lock is kept for nine tenths of the period, counted from the
start, even if the command ends sooner. So of all machines that start a job at
about the same time, only one runs it. A command that fails counts, too. One
that cannot be started does not: the lock is released, so that another machine
can run the job.

If Ctrl-C ends the command or the wait, lockreg dies of SIGINT, too, so that a
script does not go on.

Exit codes: the command's own; 128 + n if signal n ended the command or the
wait; 64 a mistake on the command line; 69 Redis cannot be used; 70 the lock was
lost while the command ran; 75, or --conflict-code, the lock was not obtained;
126 the command cannot be run; 127 it is not found.`

	lsHelp = `Lists the paths under a prefix that are locked or waited for, the longest queue
first. Paths with equal queues are sorted by name.

  PATH     only paths that contain this text; * stands for any characters, and
           the whole path must then match
  --dead   only paths with a holder or waiting call that is probably dead

The columns:

  HOLDER    the process that holds the lock, or how many do, and how many of them
            are probably dead
  HELD FOR  how long the lock has been held. Until the process has published
            that, this is an upper bound, with "≤", or how long ago the call
            asked for the lock
  LEASE     what is left of the lease. If the holder is probably dead, the
            reason follows: a renewal is overdue, there are other signs, or the
            process has no record of itself. See lockreg show
  WAITING   how many calls wait: those with a place in the queue of Redis, and
            those that wait within their processes, as of a second ago. Calls of
            dead processes count until their turn comes

"deadlock:" marks paths whose calls wait for each other. See lockreg deadlocks,
which also finds the deadlocks of older versions.

Two things are not listed: Java's waiting calls, and plain locks whose holder's
name does not come from any of the libraries. lockreg show shows such a lock.

A list that takes longer than a second comes in parts, each in this order, and
ends with the number of locks and the longest queues. A list that is cut off
ends in "not complete". With --json, --sort or --limit nothing is printed until
everything has been read.

Locks that processes of this library have held or waited for longer than a
second come first. Then SCAN reads the names of all keys of the database, in
small steps. From the 125 000th key on, SCAN takes a tenth of one of the
server's cores.
SCAN shows the names of all keys, whatever key patterns the user has.

Exit codes: 0 also when there is nothing, 64 a mistake on the command line, 69
Redis cannot be used, 130 and 143 interrupted.`

	showHelp = `Shows everything that Redis knows about one path:

  - its key, kind and format, and how many calls wait, as in lockreg ls;
  - each holder: its process, how long it has held the lock, what is left of its
    lease, and the path's last fencing token. The holder's own token is not
    larger;
  - the queue.

It shows at most 100 holders and 100 waiting calls.

A process describes itself in a record, once it has held or waited for a second.
The record outlives the leases of its locks by a minute, up to an hour. For each
prefix the last 500 records of dead processes are kept.

These are signs that a process is dead, frozen, or cannot reach Redis:

  - A renewal is overdue. This applies to its other holds, too, unless one of
    them has been renewed since.
  - Its record has not been written for a minute.
  - Its waiting call is gone: no process listens to its channel.
  - A holder of this library has no record. It is probably dead, unless its user
    of Redis may not write a record.

"too long" stands for a value that no lock has, because something else wrote it.

Exit codes: 0 also when nobody holds the lock, 64 a mistake on the command line,
69 Redis cannot be used.`

	prefixesHelp = `Lists the prefixes under which something is locked, each with the number of keys
that reveal it. Two things reveal a prefix:

  - the records of processes that hold or wait, or did so within the last
    minute;
  - values in Spring's format. The prefix is taken to end at the first colon.

Locks that only Java clients of Redisson use are not found.

SCAN reads the names of all keys of the database, for at most 10 seconds. A list
that is cut off ends in "not complete", and so does that of a user who may not
read all values. With --json nothing is printed then.

Exit codes: 0 also when there is none, 64 a mistake on the command line, 69
Redis cannot be used, or the list is not complete.`

	releaseHelp = `Shows who holds the lock, asks, and frees it if that holder still has it.

Use it when the holder is gone, or will never release the lock. It does not stop
the holder. A holder that is still working learns of the release at its next
renewal or unlock. Until then two holders may work at once.

  --yes      does not ask. Required without a terminal. If the holder may be at
             work, a warning is printed, and the lock is freed all the same
  --holder   which holder to release, if several readers hold the lock, or
             several calls hold permits. lockreg show has the name under IN
             REDIS

A line on standard error records the time, the caller (user and host), path,
key, holder, reason and result: "freed", "not freed" or "unknown". It is
"unknown" when Redis did not answer, when an interrupt came before the answer,
or when Redis refused to free a read-write lock or a permit.

Exit codes: 0 the lock was freed; 1 nothing was changed, since the lock was
free, the holder had changed, or the answer was no; 64 a mistake on the command
line; 69 Redis cannot be used; 130 and 143 interrupted.`

	deadlocksHelp = `Finds cycles of calls, each waiting for a path that the next one holds.

It sees only calls that have waited for a second or two. It looks twice, half a
second apart, and reports only what it sees both times. It cannot see Java's
holders and waiting calls.

A cycle ends when one of its processes, leases or contexts ends. lockreg release
frees one of its paths.

Exit codes: 0 there is none, 1 there is at least one, 64 a mistake on the
command line, 69 Redis cannot be used.`

	doctorHelp = `doctor examines all servers behind an address. It says what is wrong with them
for locks, and what to do. It changes nothing. It checks versions, the user's
permissions, eviction, persistence, replication, Sentinels, latency, clocks,
settings, and leftover keys of the prefix.

Give it the address that the program uses, with its user, to see which
permissions that user lacks. If doctor may not check something, it says so. To
check everything it needs +info +config|get +eval +scan +type +pttl +time.

Exit codes: 0 nothing worse than an info, 1 there is a warning or an error, 64 a
mistake on the command line, 69 Redis cannot be used.`

	serveHelp = `serve shows the locks of up to 32 prefixes live on a web page: who holds them,
who waits, and deadlocks. Redis is asked once for all browsers and all prefixes.
While no browser is open, Redis is not asked, except with --metrics or --record.

Each lock has an address of its own, which you can paste into a chat:
http://127.0.0.1:8080/?prefix=orders&path=42

With --record, a page just opened has charts of the last six hours. Redis is
then also read while no browser is open, every 10 seconds or less often: the
pause is at least as long as the reading. The samples take at most 0.25 MB of
memory for one prefix, and 0.12 MB for each further one. Without --record the
charts show when nobody looked.

serve listens on the loopback interface. On another address it starts only with
a token for viewing, and with TLS (--tls-cert, --tls-key) or --behind-proxy.
Browsers ask for the token once. A renewed certificate is reloaded.

With --allow-release the page can release locks. That needs a second token, for
releasing, which also permits viewing. Without --allow-release a Redis user that
cannot write is enough.

A token has at least 128 bits. Give it in the environment, or in a file that
others cannot read, never on the command line:

  (umask 077; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >view.token)
  lockreg serve orders --view-token-file view.token

  LOCKREG_VIEW_TOKEN      token for viewing
  LOCKREG_RELEASE_TOKEN   token for releasing

A request must name loopback, the address of --listen, or a host of --host.
Otherwise it is refused with 421. So give --host the name that browsers use.

Exit codes: 0 ended by a signal, 64 a mistake on the command line, 69 Redis
cannot be used, or it cannot listen on the address.`

	metricsHelp = `metrics serves, at /metrics, what Redis knows about the locks of some prefixes,
Java's included: how many are held and waited for, how long the oldest call has
waited, holders that are probably dead, locks without expiry, and deadlocks. So
you get alerts without changing a service. One lockreg metrics is enough
for a fleet.

It reads Redis in the background, once for all prefixes, like lockreg ls and
lockreg deadlocks. A long pass uses a tenth of one of the server's cores, and
the pause after a pass is as long as the pass. A scrape sends nothing to Redis.
lockregistry_fleet_up is 0 if the last pass has failed, or has not ended within
an hour. A Redis user that cannot write is enough.

It listens like lockreg serve: on another address than loopback it needs a token
for viewing, and TLS or --behind-proxy. Prometheus sends the token as
"Authorization: Bearer TOKEN".

Exit codes: 0 ended by a signal, 64 a mistake on the command line, 69 Redis
cannot be used, or it cannot listen on the address.`
)
