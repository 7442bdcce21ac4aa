package torture

// mutation is one way to break the library: a text and what to put in its place. The text begins in the line of the library, in
// Go or Lua, that ends with the comment "mutant: " and the name; further names follow a semicolon.
type mutation struct {
	name, what, old, new string

	// caught is by which tests: each of these patterns must find it, in the package in front of a colon, or in this one.
	caught string
}

var mutations = []mutation{
	{
		"no number", "holds carry only the registry's id",
		"r.numbers.Draw(time.Now())", "min(1, r.numbers.Draw(time.Now()))",
		"TestUnknownOutcomes$ TestLinearizable$",
	},
	{
		"grant left behind", "abandoned grants are left behind",
		"first.hold.MayArrive()", "false",
		"TestUnknownOutcomes$",
	},
	{
		"grant removed", "a grant after a late answer is removed",
		"first.won()", "false",
		"../../test/faults:TestLock_FreeAfterALateAnswer$",
	},
	{
		"free too soon", "the local half is free before the removal is known",
		"p := &pending{Removal: r, freed: freed}",
		"if freed != nil {\n\t\tfreed(true)\n\t\tfreed = nil\n\t}\n\tp := &pending{Removal: r}",
		"TestUnknownOutcomes$",
	},
	{
		"late grant wins", "a late grant wins over a later hold",
		" and other <= tonumber(number)", "",
		"TestUnknownOutcomes$",
	},
	{
		"late grant wins, Redisson", "a late grant wins over a later hold, in Redisson's format",
		" and n < tonumber(number)", "",
		"TestUnknownOutcomes$",
	},
	{
		"removal after a minute", "removals are tried again after a minute",
		"clock.Backoff(p.failures, p.Lease)", "p.Watch",
		"TestUnknownOutcomes$",
	},
	{
		"one removal", "one removal is enough for a late grant",
		"!p.MayArrive", "true",
		"TestUnknownOutcomes$",
	},
	{
		"no margin", "leases have no margin",
		"length/100 + time.Millisecond", "0 * length",
		"TestFrozen|TestOvertaken",
	},
	{
		"contexts end by timers alone", "a look at a context does not look at the clock",
		"lookAt(now)", "lookAt(min(now, 0))",
		"../lock:TestContext_GoesByTheClock$",
	},
	{
		"nested call shortens", "a nested call sets its own lease for all",
		"h.Nest(o, asked)", "return l.redis.Prolong(ctx, hold.Part{Hold: h, Owner: o}, asked, queue.Limits{Deadline: clock.Never})",
		"../lease:TestNested_KeepsTheLeaseOfTheOuterOne$",
	},
	{
		"nested call stays", "an unlock with the context of a lost hold is not the owner's",
		"now.unlockLost(c.Lost(&now.hold))", "err",
		"../lease:TestLost_NestedCallsOfOtherGoroutines$",
	},
	{
		"sharer gets less", "a reader that joins during a renewal gets its lease",
		"u.joined = longer(u.joined, t)", "_ = t",
		"../lease:TestNested_AReaderThatComesDuringARenewal$",
	},
	{
		"next owner loses its lease", "a renewal that meets an unlock sets the next owner's lease",
		"s.pending.changes++", "_ = s",
		"../../internal/hold:TestRenew_AsTheHoldIsHandedOver$",
	},
	{
		"leaving reader shortens", "a reader that leaves during its renewal shortens the others' lease",
		"&& !alone {", "&& !alone && h.path.Above.Count() > 1 {",
		"../../internal/hold:TestRenew_AsAReaderLeaves$",
	},
	{
		"inner lease stays", "the lease of a nested call stays after it",
		"s.pending.exceeds, s.next = true, min(s.next, now)", "_ = now",
		"../lease:TestNested_KeepsTheLeaseOfTheOuterOne$",
	},
	{
		"lease from the reply", "leases count from the reply",
		"s.prolong(sent,", "s.prolong(came,",
		"../../internal/lease:TestState_Grant$ ../../internal/hold:TestHold_GrantCountsFromItsCommand$",
	},
	{
		"renewal forgotten", "renewals of unknown outcome are forgotten",
		"fault.OutcomeUnknown(err)", "err == nil",
		"TestOvertakenRenewal",
	},
	{
		"late grant forgotten", "late grants are forgotten",
		"s.MayArrive", "false",
		"TestOvertakenGrant",
	},
	{
		"failure ends the wait", "a transient failure ends the wait",
		"!a.cut && fault.Transient(err)", "false",
		"TestDisturbedWhileWaiting|TestUnknownOutcomes$",
	},
	{
		"look is narrowed", "a look that may not name its queue obtains the lock",
		"b.Mode == ModeEnqueue", "true",
		"../faults:TestRefusedKeys_TheQueueOfAWaitingCall$",
	},
	{
		"late reading is a proxy", "a late reading without the hold counts for a proxy",
		" && !r.Late", "",
		"../several:TestAcquireAll_ReadBack$",
	},
	{
		"lost ticket is no matter", "no call looks when its ticket is missing",
		"call.Look()", "_ = call",
		"../waiting:TestQueue_IsDeleted$",
	},
	{
		"granted ticket is lost", "a ticket that was granted counts as lost",
		"a.path.Node().Granted(a)", "",
		"../waiting:TestQueue_MissingTicketsThatWereGranted$",
	},
	{
		"confirmed removals count", "a removal that is confirmed counts as one that fails",
		"p.since == 0", "p != nil",
		"../../internal/cleanup:TestRemove_LooksOutForALateGrant$",
	},
	{
		"nobody backs off", "nobody backs off",
		"s.backsOff", "false",
		"TestHandoffIsFair",
	},
	{
		"tries first", "a call that is to back off tries first",
		"s.backsOff || ", "",
		"TestHandoffIsFair",
	},
	{
		"handed on without end", "the lock is handed on without end",
		"had >= limit", "false",
		"TestHandoffIsFair",
	},
	{
		"writer beside readers", "a writer does not mind readers",
		"true", "mode == 'write'",
		"TestReadWriteLinearizable/library$",
	},
	{
		"later hold is lost", "a writer takes later holds of its registry for lost ones",
		" and n < tonumber(number)", "",
		"TestUnknownOutcomes$/sharing",
	},
	{
		"later writer is lost", "a reader takes a later writer of its registry for a lost one",
		" and n < tonumber(number)", "",
		"TestLateReader$",
	},
	{
		"reader beside a writer", "a reader does not mind a writer",
		"mode == 'read'", "mode",
		"TestReadWriteLinearizable/library$",
	},
	{
		"admitted beside a writer", "a reader with a ticket does not mind a writer",
		" and mode == 'read'", "",
		"TestReadWriteLinearizable/library$",
	},
	{
		"lease ends others", "the lease of a reader ends others'",
		"math.max(left, tonumber(lease))", "lease",
		"TestReadingBesideLongerLease",
	},
	{
		"reading renewal ends others", "the renewal of a reader ends others'",
		"redis.call('HLEN', key) == 2", "true",
		"TestReadingOn",
	},
	{
		"field without a lease", "a reader whose lease is gone is confirmed",
		"redis.call('PTTL', own) == -2", "false",
		"../shared:TestReadWriteLock_VerifiedWithoutItsLease$",
	},
	{
		"lease elsewhere is over", "while a slot moves, readers whose leases are at the other node are removed",
		"type(redis.pcall('EXISTS', key, own)) == 'number'", "true",
		"../cluster:TestReadWriteLock_HalfASlotIsMoved$",
	},
	{
		"dead readers stay", "the fields of dead readers stay while others read",
		"left == -2", "false",
		"../shared:TestReadWriteLock_DeadReadersLeaveNoField$",
	},
	{
		"writing renewal ends reading", "the renewal of a writer ends its reader",
		"redis.call('HLEN', key) == 2", "true",
		"TestRenewalUnderReader",
	},
	{
		"lock goes with one", "a reader that leaves takes the others' lock",
		"longest == 0", "true",
		"TestReadWriteLinearizable/library$ TestReadingOn",
	},
	{
		"reader takes its writer along", "a reader that leaves takes its own writer's lock",
		"string.sub(fields[i], -6) == ':write'", "false",
		"TestReadWriteLinearizable/library$",
	},
	{
		"local reader beside a writer", "readers do not wait for a writer of the same process",
		"l.write.phase != phaseFree && !l.write.heldBy(o)", "false",
		"TestReadWriteLinearizable/library$",
	},
	{
		"local writer beside readers", "writers do not wait for readers of the same process",
		" || l.read.phase != phaseFree", "",
		"TestReadWriteLinearizable/library$",
	},
	{
		"first reader ends all", "the first reader that leaves ends the hold of all",
		"s.Count() > 0", "false",
		"TestReadWriteLinearizable/library$",
	},
	{
		"writer not told", "what a reader has under its own writer is not told to Redis",
		"first.under = p.lock.Under()", "_ = p.lock.Under()",
		"TestReadWriteLinearizable/library$",
	},
	{
		"no answer is late", "no answer is late",
		"x.Sent.Until(x.Came)", "time.Duration(0)\n\tx.Sent = x.Came",
		"../../internal/belief:TestState_Dialogues$",
	},
	{
		"late grant believed", "a late grant is believed at once",
		"err != nil || !reply.Late", "true",
		"TestDeposed$|TestOutage$",
	},
	{
		"silent connection kept", "commands keep to the connections that were silent",
		"r.way, r.fresh = fresh, fresh", "r.fresh = fresh",
		"TestOutage$",
	},
	{
		"refused, and nobody asked", "the Sentinels are not asked while the master refuses connections",
		"f.vouch(&belief.Way{Address: address, Since: began, Greeted: clock.Never})", "_ = address",
		"../../internal/transport:TestVouching_TheServerRefusesConnections$",
	},
	{
		"believed again too soon", "the log says that locks go on while the server refuses connections, or is doubted",
		"!used || w.Greeted == clock.Never || s.belief.DoubtedSince(asked)", "false",
		"../../internal/transport:TestVouching_LocksGoOn$",
	},
	{
		"node made after close", "what becomes a master after Close is not closed",
		"old.closed", "false",
		"../../internal/transport:TestRoutes_ANodeThatIsMadeAfterClose$",
	},
	{
		"node kept by an idle bound", "a node to which no slot leads is never collected",
		"b.to.Store(nil)", "_ = b",
		"../../internal/transport:TestBound_AnIdleOneKeepsNoNode$",
	},
	{
		"silent connection taken", "a command goes over a fresh connection that is about to be closed because it was silent",
		"f.judge.belief.Outlives(conn.Since)", "true",
		"../../internal/transport:TestFreshConns_SilentBeforeItIsTaken$ ../../internal/transport:TestNode_SilentWhileAWayIsFound$",
	},
	{
		"lock in another database", "a connection is used although the database of the others is not known",
		"databaseIn(text) != \"0\" && !e.isKnown()", "false",
		"../../internal/transport:TestDialer_WhileTheDatabaseIsNotKnown$",
	},
	{
		"silent server not asked at once", "a call fails fast although the server answers again",
		"s.Relearn()", "_ = s",
		"../../internal/transport:TestKeepAlive_AServerThatAnswersAgain$",
	},
	{
		"database not asked for", "no new connection can be used while those whose database it must have are silent",
		"t.learnDatabase()", "_ = t",
		"../../internal/transport:TestClient_DatabaseIsAskedForEarly$",
	},
	{
		"whole refusal taken for an answer", "a server that refuses the connection counts as one that does not tell its database",
		"!fault.RefusesInfo(err)", "fault.Transient(err)",
		"../../internal/transport:TestClient_DatabaseOfARefusedConnection$",
	},
	{
		"end taken for an answer", "one connection that ends at the question for its database counts as a server that does not tell",
		"enough = 2", "enough = 1",
		"../../internal/transport:TestExam_AConnectionEndsAtTheQuestion$",
	},
	{
		"replicated in another database", "the same, where replicas are waited for",
		"known = t.database(belief.Connect); !known", "known = t.database(belief.Connect); false && !known",
		"../../internal/transport:TestDialer_WhileTheDatabaseIsNotKnown$",
	},
	{
		"queued behind a stale sender", "a write stays where it was queued when that connection takes no more",
		"s.senders < mostReplicaSenders", "false",
		"../../internal/transport:TestReplicas_AWriteIsNotLeftBehindOthers$",
	},
	{
		"left behind a lost connection", "a write stays where it was queued when that connection has lost what was sent before",
		"belief.Tick", "time.Hour",
		"../../internal/transport:TestReplicas_AWriteIsNotLeftBehindALostConnection$",
	},
	{
		"answers from before trusted", "what the nodes of a cluster said before one of them redirected a command is trusted",
		"r.doubted >= now", "false",
		"../../internal/topology:TestResolver_ForgetsWhatIsUnderWay$",
	},
	{
		"new names never learned", "a cluster's client is not urged to look again when the nodes have got other addresses",
		"if urges", "if urges && false",
		"../../internal/topology:TestResolver_UrgesTheClientToLearnNewNames$",
	},
	{
		"late greeting", "a connection that the old master has greeted late is used",
		"d.judge.RoundTrip().Connect()", "time.Hour",
		"../../test/faults:TestConnection_AConnectionThatWasMadeDuringAFreeze$",
	},
	{
		"nobody vouches", "a server that greets a new connection is believed without a word of its Sentinels",
		"word == Vouching", "true",
		"../../internal/transport:TestVouching_ADeposedMaster$",
	},
	{
		"way astray", "a reply counts although the client leads to another server than the nodes of a cluster name",
		"owner.Astray = r.named", "owner.Astray = r.named && false",
		"../../internal/transport:TestNode_TheClientLeadsAstray$",
	},
	{
		"redirected renewal lost", "what a suspect node of a cluster redirects is not sent again",
		"return send(ctx, t.redis, moved)", "return nil",
		"../../test/cluster:TestFailover_RenewalsFollowASlot$",
	},
	{
		"old proofs kept", "what was proven of a server is never forgotten",
		"!leads(other.server)", "leads(other.server) && false",
		"../../internal/queue:TestProofs_OfServersThatLeadNoMoreAreForgotten$",
	},
	{
		"successor not looked at", "holds on the server of a lost connection are looked at, not those that its successor has",
		"!at.IsSuspect(now)", "true",
		"../../test/cluster:TestFailover_TheSuccessorOfAFrozenMasterHasItsHoldsLookedAt$",
	},
	{
		"silent former master believed", "a master that does not answer, and has a successor, is not suspect unless something was sent",
		"t.resolver.Silent(s.Address)", "false",
		"../../internal/transport:TestRoutes_TheSuccessorOfASilentMaster$",
	},
	{
		"left server believed", "a reply counts although the client has left the server, or it was doubted, meanwhile",
		"s.left(r.leads, r.asked)", "s.left(r.leads, r.asked) && false",
		"../../internal/transport:TestVouching_UnderWay$ ../../internal/transport:TestVouching_NobodyToAsk$",
	},
	{
		"road from before", "a driver takes commands for a road that was chosen before the node became suspect",
		"!q.given.stands(&d.road)", "false",
		"../../internal/transport:TestQueue_RoadFromBefore$",
	},
	{
		"obtained when closed", "a lock is asked for on a node that was suspect when it was closed",
		"left || e.obtains() && barred", "left || barred && false",
		"../../internal/transport:TestQueue_ClosedWithARoad$ ../../internal/transport:TestVouching_AfterItWasClosed$",
	},
	{
		"obtained when closed, elsewhere", "a lock is asked for on a node that was closed while the way there was looked for",
		"e.obtains() && of.belief.Barred()", "false",
		"../../internal/transport:TestNode_ClosedWhileAWayIsFound$",
	},
	{
		"left command taken", "a command is sent although its caller has left",
		"e.end.stage.CompareAndSwap(waits, taken)", "e.end.stage.Swap(taken) != taken",
		"../../internal/transport:TestQueue_LeavesAsADriverTakes$",
	},
	{
		"abandoned uncounted", "a registry is closed before a command is answered whose caller has left",
		"e.abandoned.Add(1)", "_ = 0",
		"../../internal/transport:TestQueue_WhoLeaves$ ../../internal/transport:TestQueue_CommandsThatAreAbandoned$",
	},
	{
		"reply to another", "the bound of a caller that has left is used again while its command may be answered",
		"quiet && !over", "quiet",
		"../../internal/transport:TestQueue_ReplyToOneWhoLeft$",
	},
	{
		"doubt unheard", "what the Sentinels publish raises no doubt",
		"s.Doubt(now)", "return 0\n\ts.Doubt(now)",
		"../../internal/transport:TestVouching_ADeposedMaster$",
	},
	{
		"standstill unnoticed", "a process that stood still trusts its server as before",
		"do = s.Doubted(now)", "",
		"../../internal/transport:TestVouching_AfterAStandstill$",
	},
	{
		"unknown server trusted", "a server is believed that most Sentinels do not vouch for",
		"return LongestDoubt, true", "return 0, true",
		"../../internal/sentinel:TestVerdict_Suffices$ ../../internal/transport:TestVouching_ItIsWaitedForSoLong$",
	},
	{
		"replaced server trusted", "a server is believed that a Sentinel replaces",
		"bounded && greeted", "!bounded || greeted",
		"../../internal/sentinel:TestVerdict_Suffices$ ../../internal/transport:TestVouching_ADeposedMaster$",
	},
	{
		"few Sentinels suffice", "a few Sentinels vouch for a server",
		"2*(count[Vouched]+count[Down]) <= all", "len(said) == 0",
		"../../internal/sentinel:TestJudge_WhoAnswers$",
	},
	{
		"lagging Sentinel replaces", "a Sentinel that lags, or is misconfigured, counts like one that replaces the master",
		"return Disputed", "return Replaced",
		"../../internal/sentinel:TestJudge_AnotherName$",
	},
	{
		"contester outlasted", "a server is believed although a Sentinel that the others know has newer votes for another one",
		"+count[Contested] > 0", " > 0",
		"../../internal/sentinel:TestJudge_AnotherName$",
	},
	{
		"leader not missed", "a majority vouches although the leader of a failover does not answer",
		"c.missesLeader(answers, asked)", "false",
		"../../internal/sentinel:TestCouncil_ALeaderThatDoesNotAnswer$ ../../internal/sentinel:TestWatch_TheLeaderIsSilent$",
	},
	{
		"change unnoticed", "a lock counts that was obtained from a server for which nobody vouched, after the client changed to it",
		"x.Left = true", "",
		"../../internal/transport:TestVouching_TheClientChanges$",
	},
	{
		"doubt passes", "a doubt of the Sentinels passes with time",
		"next.inDoubt = true", "next.beSuspect(at.Add(Old))",
		"../../internal/transport:TestVouching_HoweverLongItWasFrozen$",
	},
	{
		"newer doubt forgotten", "a verdict ends a doubt that is newer than the question",
		" && next.doubtedAt <= asked", "",
		"../../internal/belief:TestState_Told$",
	},
	{
		"begins without doubt", "a process that begins during a failover believes its server before the Sentinels have spoken",
		"s.Doubt(now)", "",
		"../../internal/transport:TestVouching_TheFirstWord$ ../../internal/transport:TestVouching_AConnectionFromBefore$",
	},
	{
		"old connections trusted", "connections from before the watch are believed although no Sentinel answers",
		" && young", "",
		"../../internal/transport:TestVouching_NoFirstWordAboutOldConnections$",
	},
	{
		"missed events", "a Sentinel that is heard again is not asked what it published meanwhile",
		"[]act{{do: ask, address: address}}", "nil",
		"../../internal/sentinel:TestWatch_EventsBetweenTwoSubscriptions$",
	},
	{
		"another master unheard", "nobody hears that a Sentinel is told to watch another server",
		`"+monitor",`, "",
		"../../internal/sentinel:TestCouncil_WatchesAnotherServer$",
	},
	{
		"new Sentinels unheard", "Sentinels that have replaced all others are not heard",
		"[]act{{do: list, address: by}}", "nil",
		"../../internal/sentinel:TestWatch_AllAreReplaced$",
	},
	{
		"known word doubted", "a Sentinel that disputes the master stops all locking whenever it is asked where the others are",
		"if what.do == list {", "if false {",
		"../../internal/sentinel:TestWatch_OneThatDisputesIsAskedForTheOthers$",
	},
	{
		"found Sentinels not dialed", "a client does not reach the Sentinels that have replaced all others",
		`address, _, _ = strings.Cut(address, " @ ")`, `_, _, _ = strings.Cut(address, " @ ")`,
		"../../internal/sentinel:TestWatch_TrackedDialsWhatASentinelHasFound$ ../../test/registry:TestOpen_AllSentinelsAreReplaced$",
	},
	{
		"heard twice", "a Sentinel that is heard is dialed at the address that it announces, too, for as long as the process runs",
		"c.members[p.address] == nil && c.hears(p.id)", "false",
		"../../internal/sentinel:TestCouncil_ASentinelThatAnnouncesAnotherAddress$",
	},
	{
		"lagging Sentinel followed", "a client goes on to ask a Sentinel that is cut off from the others",
		" || v == Disputed", "",
		"../../internal/sentinel:TestSuccessor$ ../../test/registry:TestOpen_ASentinelThatIsCutOffFromTheOthers$",
	},
	{
		"panic keeps a place", "a command in which code of the user panics counts as under way for ever",
		"defer s.bounds.free(end)", "",
		"../../internal/transport:TestBound_IsFreeAfterAPanic$",
	},
	{
		"driver loses its node", "a driver finds no node for the reply to a caller that has panicked",
		"b.phase.Load() == idle", "true",
		"../../internal/transport:TestBound_IsFreeAfterAPanic$",
	},
	{
		"readers lost on the move", "a look shows no readers whose leases are at another node while a slot moves",
		`, "moving")`, ")",
		"../../test/cluster:TestInspect_HalfASlotIsMoved$",
	},
	{
		"trusted too soon", "the old master is believed again before it is demoted",
		"30 * time.Second", "5 * time.Second",
		"TestOutage$",
	},
	{
		"late removal believed", "a late removal is believed at once",
		" && !reply.Late", "",
		"TestDeposed$",
	},
	{
		"release not proven", "a lock is obtained although the user may not release it",
		"err != nil", "false",
		"../registry:TestUnreleasable_IsNotTaken$",
	},
	{
		"late removal is a loss", "a removal that comes after the end of the lease proves a loss",
		"!h.Expired(came)", "true",
		"../faults:TestLateUnlock_NobodyKnows$",
	},
	{
		"grant counts from its message", "a grant counts from its message",
		"a.ticket.base", "a.path.Clock.Now()",
		"TestQueueOutcomes",
	},
	{
		"ticket left", "a call that gives up leaves its ticket",
		"a.box.open(\"\")\n\tif a.ticket.newest == \"\" {", "if true {",
		"TestQueueOutcomes",
	},
	{
		"anybody's key removed", "a short release does not mind whose key it is",
		"held == value", "true",
		"TestUnknownOutcomes$|TestLinearizable$",
	},
	{
		"key taken in passing", "who asks for a ticket takes the key in passing",
		"held", "false",
		"TestLinearizable$",
	},
	{
		"grant not passed on", "a call that gives up does not pass on a grant",
		"opens", "opens and not leaves",
		"TestQueueOutcomes/library TestQueueOutcomes/redisson",
	},
	{
		"served ticket stays", "a ticket that is served stays",
		"redis.call('ZREM', queue, first)\n", "",
		"TestQueueOutcomes/library TestQueueOutcomes/redisson",
	},
	{
		"dead are served", "the dead are served",
		"> 0", ">= 0",
		"TestQueueOutcomes/library TestQueueOutcomes/redisson",
	},
	{
		"living are swept", "behind a ticket of the dead those of the living go, too",
		"heard[2 * gone + 2] == 0", "true",
		"../../internal/protocol:TestQueue_ManyAreGone$",
	},
	{
		"dead stay in front", "tickets of the dead stay while the lock is held",
		"pcall(clear)", "",
		"../waiting:TestQueue_DeadTicketsGoWhileTheLockIsHeld$ ../../internal/protocol:TestQueue_ALookClears$",
	},
	{
		"next one is not told of it", "who is first when tickets of the dead are gone is not told",
		"rank < reply[3]", "false",
		"../../internal/protocol:TestQueue_ALookClears$",
	},
	{
		"grant of a whole lease", "a grant has the whole lease",
		"tonumber(lease) < tonumber(SHORT_LEASE) and lease or SHORT_LEASE", "lease",
		"TestNothingStaysBlocked",
	},
	{
		"grant not lengthened", "a granted hold is not lengthened",
		"now.Add(left / lengthenPart)", "clock.Never",
		"TestQueueOutcomes",
	},
	{
		"one number twice", "one number for two attempts",
		"a.hold = a.path.lock.NewHold(a.hold.Terms())", "",
		"TestQueueOutcomes",
	},
	{
		"abandoned ticket left", "the ticket of an abandoned attempt stays",
		"a.path.all.cleanUp(left)", "_ = left",
		"TestQueueOutcomes",
	},
	{
		"one ticket of several", "only one ticket of an abandoned attempt goes",
		"ARGV[7], unpack(ARGV, 11)", "ARGV[7]",
		"../../internal/protocol:TestFormat_Leaving$",
	},
	{
		"grant to nobody", "a grant to nobody is kept",
		"l.redis.RemoveUnclaimed(m.Number)", "_ = l",
		"TestQueueOutcomes",
	},
	{
		"late watch is forgotten", "a call that has not waited until its key was watched never learns that it is",
		"w.asking == asksForCall || len(w.ready) > 0", "false",
		"../../internal/wake:TestNews_AnAnswerAfterItsCall$",
	},
	{
		"one proof for all", "what one registry has proven about its channel counts for all on its client",
		"m.proofs[o.user] == NotYet &&", "len(m.proofs) == 0 &&",
		"../waiting:TestWakeup_TwoPrefixesOfDifferentRights$",
	},
	{
		"found hold lost", "a hold that was found is lost with its own message",
		"a.hold.AwaitMessage(due)", "a.hold.AwaitMessage(due-due)",
		"TestQueueOutcomes",
	},
	{
		"writer forgotten", "who reads does not know that its owner was granted the writer",
		"of.pair.wrote.Store(h)", "",
		"TestReadingUnderGrantedWriter",
	},
	{
		"kept path is a hold", "a path that stays taken has an older hold of its registry",
		" .. ':atleast'", "",
		"TestReleasesOfUnknownOutcome",
	},
	{
		"kept path is a hold, Redisson", "a path that stays taken has an older hold of its registry, in Redisson's format",
		"redis.call('HSET', key, value .. ':atleast', '1')\n" +
			"    if type(redis.pcall('PEXPIRE', key, keep)) == 'table' then -- it is forbidden\n" +
			"      redis.call('HDEL', key, value .. ':atleast')\n      redis.call('PEXPIRE', key, keep) -- says so\n    end\n" +
			"    if type(redis.pcall('HDEL', key, value)) == 'table' then",
		"redis.call('HSET', key, value, '1')\n    redis.call('PEXPIRE', key, keep)\n    if false then",
		"TestReleasesOfUnknownOutcome",
	},
	{
		"released whoever has it", "a script for several paths removes what another owner has",
		"redis.pcall('GET', key) ~= value", "not redis.pcall('GET', key)",
		"../several:TestReleaseAll_SomeAreLost$",
	},
	{
		"waiting calls are passed over", "a script for several paths removes what others wait for",
		"redis.pcall('EXISTS', queue) ~= 0", "false",
		"../several:TestReleaseAll_OthersWaitForOne$",
	},
	{
		"released with others", "several locks are released together although others have them",
		"redis.pcall('GET', KEYS[i]) == ARGV[5 + i]", "true",
		"../several:TestReleaseAll_SomeAreLost$",
	},
	{
		"together over others", "several paths are obtained at once although others have them",
		"redis.pcall('EXISTS', unpack(KEYS, 1, n)) == 0", "true",
		"../several:TestAcquireAll_WhenOneIsTaken$",
	},
	{
		"several without an answer", "paths whose script got no answer are released once more, and found to be lost",
		"fault.OutcomeUnknown(err)", "false",
		"../several:TestReleaseAll_WithALostReply$",
	},
	{
		"late script believed", "a late reply that several paths are released is believed at once",
		"settle := ", "reply.Late = false\n\tsettle := ",
		"../several:TestReleaseAll_WithALateReply$",
	},
	{
		"turn has no time", "the time of a release begins before its turn among several",
		"e.At = e.Path.Clock.Now()", "",
		"../several:TestReleaseAll_EachHasItsTime$",
	},
	{
		"found is released", "a path that the script for several has not found counts as released",
		"!slices.Contains(free, 0)", "true",
		"../several:TestReleaseAll_SomeAreLost$ ../several:TestReleaseAll_BehindAProxy$",
	},
	{
		"kept path let go", "a release that is tried again does not keep the path",
		"Keep:      r.Kept,", "",
		"TestReleasesOfUnknownOutcome",
	},
	{
		"released twice", "a hold is released twice",
		"before&released != 0", "false",
		"TestReleasesOfUnknownOutcome",
	},
	{
		"other connection", "replicas are waited for on another connection",
		"results := client.DoMulti(context.Background(), commands...)", `last := len(commands) - 1
	var results []rueidis.RedisResult
	if last > 0 {
		results = client.DoMulti(t.ctx, commands[:last]...)
	}
	results = append(results, t.redis.Do(t.ctx, commands[last]))`,
		"TestReplicas$",
	},
	{
		"short grant", "what too few replicas have is granted",
		"err = a.giveBack(reply.ReplicaErr)", "_ = a.giveBack",
		"TestReplicas$",
	},
	{
		"short grant kept", "what too few replicas have is not given back",
		"a.path.all.cleanUp(left)", "_ = left",
		"TestReplicas$",
	},
	{
		"short renewal", "a renewal counts that too few replicas have",
		"err = r.ReplicaErr", "",
		"TestReplicas$",
	},
	{
		"unwritten grant", "a grant counts although no replica is known to have it",
		" && !a.writes()", "",
		"TestReplicas$",
	},
	{
		"granted once more", "a hold that is granted once more goes on",
		"h.GrantAgain()", "_ = h",
		"TestQueueOutcomes",
	},
	{
		"tokens drawn twice", "a range of tokens is drawn twice",
		"counter, 100)\n  if type(last) ~= 'table' then\n    redis.pcall('PERSIST', counter)\n  end\n" +
			"  return type(last) == 'table' and last or last - 99",
		"counter, 1)\n  if type(last) ~= 'table' then\n    redis.pcall('PERSIST', counter)\n  end\n" +
			"  return type(last) == 'table' and last or last",
		"TestTokensGrow$/redisson",
	},
	{
		"tokens used up", "a process uses up its tokens though another one had the lock",
		"e := h.own()\n\t\te.token, e.tokensLeft = first, tokensDrawn-1\n\t}\n}",
		`all := <-ranges
		if last := all[h.path]; first > 0 && last > 0 {
			first = last + 1
		}
		if first > 0 {
			all[h.path] = first
		}
		ranges <- all
		e := h.own()
		e.token, e.tokensLeft = first, tokensDrawn-1
	}
}

var ranges = make(chan map[any]uint64, 1)

func init() { ranges <- map[any]uint64{} }`,
		"TestTokensGrow$/library",
	},
	{
		"same token", "the next owner in the process has the same token",
		"e.token++", "",
		"TestTokensGrow$/library",
	},
	{
		"no token", "a call that was granted the lock by another process has no token",
		"a.path.Format.Fencing || ", "",
		"TestTokensGrow$/redisson",
	},
	{
		"lock of an ended goroutine kept", "an observer ends the goroutine of a call, and the call keeps the lock",
		" && got", " && false",
		"../faults:TestLock_ObserverThatEndsTheGoroutineLeavesNothingTaken$",
	},
	{
		"waiter that panicked stays", "a call whose context panics stays in the queue of the local half",
		"l.forsake(w, q.By, &t)", "",
		"../faults:TestLock_ContextThatPanicsLeavesNothingTaken$",
	},
	{
		"panic keeps the local half", "a call whose context panics keeps the local half",
		"first.forsake()", "",
		"../faults:TestLock_ContextThatPanicsLeavesNothingTaken$",
	},
	{
		"panic keeps the local half leaving", "an unlock whose context panics never frees the local half",
		"p.forsakeEnded(e.Hold)", "",
		"../faults:TestLock_ContextThatPanicsLeavesNothingTaken$",
	},
	{
		"first path kept", "a call that gives up keeps the first of its paths",
		"givenBack(queue.NoTime, holds)", "givenBack(queue.NoTime, nil)",
		"TestAllOrNone$",
	},
	{
		"paths forgotten", "paths whose grant may have been lost are forgotten",
		" && !fault.OutcomeUnknown(r.Err)", "",
		"TestAllOrNone$",
	},
	{
		"paths obtained in part", "paths are obtained up to the one that is taken",
		"return i", "for k = 1, i - 1 do redis.call('SET', KEYS[k], ARGV[5 + k], 'PX', ARGV[2]) end\n    return i",
		"TestAllOrNone$/library TestAllOrNone$/redisson",
	},
	{
		"last path alone", "what is known of the last path goes for all of them",
		"KEYS[i]", "KEYS[n]",
		"TestAllOrNone$/library TestAllOrNone$/redisson",
	},
	{
		"late paths win", "a late grant of several paths wins over a later hold",
		" or state == 'later'", "",
		"TestAllOrNone$/library TestAllOrNone$/redisson",
	},
	{
		"unsorted", "paths are waited for in the order in which they are given",
		"slices.Sort(ordered)", "",
		"TestNobodyWaitsForEachOther$",
	},
	{
		"one permit more", "a semaphore gives one permit more than there are",
		"<= -first[2]", "<= 1 - first[2]",
		"../shared:TestSemaphore$",
	},
	{
		"in passing", "calls without a ticket overtake those that wait for several permits",
		"redis.pcall('EXISTS', queue) == 0", "true",
		"../shared:TestSemaphoreQueue_Several$",
	},
	{
		"permit given twice", "a permit is given on, and stays",
		"redis.call('ZREM', key, value)", "",
		"../shared:TestSemaphoreQueue_FirstInFirstOut$",
	},
	{
		"permit lost on the way", "a permit is given on to nobody",
		"redis.call('ZADD', key, string.format('%.1f', at + 1000.5), given)", "",
		"../shared:TestSemaphoreQueue_FirstInFirstOut$",
	},
	{
		"several count as one", "who asks for several permits needs room for one",
		"used + wanted", "used + 1",
		"../../internal/protocol:TestPermits_NeverMoreThanThereAre$ ../shared:TestSemaphoreQueue_NeverMoreThanThereAre$",
	},
	{
		"weight left", "what a hold has more than one permit stays when its lease is over",
		", over[i] .. '*'", "",
		"../../internal/protocol:TestPermits_LeaseIsOver$",
	},
	{
		"renewed when it is over", "a permit whose lease is over is renewed",
		" or tonumber(ends) <= at", "",
		"../../internal/protocol:TestPermits_LeaseIsOver$",
	},
	{
		"stands still for each call", "a process that stands still is granted permits for each of its calls",
		"pcall(passOver, still)", "",
		"../../internal/protocol:TestPermits_StandsStill$ ../shared:TestSemaphoreQueue_ProcessStandsStill$",
	},
	{
		"short lease is to be lengthened", "a lease that is all that was asked for is taken for that of a process that stands still",
		" and tonumber(asked) > least + 10", "",
		"../../internal/protocol:TestPermits_Grant$",
	},
	{
		"key ends with the grant", "nobody sees that a process stands still, since the key ends with its grant",
		"0.5, 15000", "0.5, least",
		"../../internal/protocol:TestPermits_Grant$",
	},
	{
		"unknown for ever", "a semaphore stands still behind an old ticket of an unknown form",
		"tonumber(place) >= (before or 0)", "true",
		"../../internal/protocol:TestPermits_ATicketOfANewerVersion$",
	},
	{
		"asks for too many", "a ticket for more permits than there are stays",
		"asked <= limit", "true",
		"../../internal/protocol:TestPermits_AsksForTooMany$",
	},
	{
		"nobody else is told", "only the process that is granted a permit is told",
		"warnAnother(goesOn and registry or to, mine, granted)", "",
		"../../internal/protocol:TestPermits_AnotherProcessIsTold$",
	},
	{
		"searches no more", "where calls of one process waited another one is never told",
		" and searched < 1000", "",
		"../../internal/protocol:TestPermits_OneProcessIsSearchedOnce$",
	},
	{
		"first for ever", "a process that stands still keeps free permits that are too few for it",
		"asked and left <= 0", "false",
		"../../internal/protocol:TestPermits_FirstOneStandsStill$ ../shared:TestSemaphoreQueue_FirstOneIsStopped$",
	},
	{
		"never seen to run", "calls behind the first one take the permits for which it waits",
		"string.match(place, '^%d+')", "place",
		"../../internal/protocol:TestPermits_FirstOneRuns$ ../shared:TestSemaphoreQueue_FirstOneRuns$",
	},
	{
		"patient with each call", "a call for permits waits for each one in front of it",
		"min(rank, mostPatient+s.ahead)", "rank",
		"../../internal/queue:TestLookTimes_Permits$",
	},
	{
		"patient near the head", "a process near the head looks no sooner than calls in front of it that may stand still",
		"min(rank, 1+s.ahead)", "rank",
		"../../internal/queue:TestLookTimes_Permits$",
	},
	{
		"lost holds kept", "holds that are not released are kept for ever",
		"l.reg.permits.Leave(l)", "",
		"../shared:TestSemaphore_LapsedHoldsAreForgotten$",
	},
	{
		"dead keep readers out", "a reader that polls waits for tickets of dead processes",
		"heard == 0 and redis.pcall('ZREM', queue, first[1]) == 1", "false",
		"../shared:TestQueue_AReaderThatPollsPassesDeadTickets$",
	},
	{
		"permit not recalled", "releases of just now are not sent once more",
		"f.path.RemoveUnclaimed(f.number)", "",
		"../shared:TestSemaphore_ReleaseIsSentOnceMore$",
	},
	{
		"number removed", "ForceUnlock removes the number of a semaphore of Redisson",
		"string.find(value, '^%-?%d+$') and redis.call('PTTL', key) == -1", "false",
		"../shared:TestSemaphoreRedisson_OthersAreRefusedByName$",
	},
	{
		"short windows are left out", "a release by the short way leaves no short window",
		"open >= 0 and open < 100 and", "",
		"../../internal/protocol:TestQueue_ShortReleaseOnlyServes$",
	},
	{
		"long windows are left out", "a release by the short way leaves no long window",
		"(wide < 1700 or quiet and wide < 15000 and first[4] % 1 == 0) and", "",
		"../../internal/protocol:TestQueue_ShortReleaseOnlyServes$",
	},
	{
		"the next one is not told", "a release by the short way tells no call that it is the next one",
		"now - first[6] / 1000 < 1000", "true",
		"../../internal/protocol:TestQueue_ShortReleaseOnlyServes$",
	},
}
