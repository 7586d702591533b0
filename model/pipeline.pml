/*
 * The protocol of the pipeline as a model for Spin: one attachment, its jobs, and every process that may touch them.
 *
 * Each step of a process here is one effect of the same process in `src/`, and says which: a statement of the store is
 * one `d_step`, because PostgreSQL commits it whole; whatever happens between two statements may happen between two steps.
 * `scripts/model.ts` compiles and checks it (`npm run model`), `docs/model.md` says what was checked, what is not in it, and
 * how to read a trail.
 *
 * Time has no numbers. Of `not_before`, `lease_until` and `ring_at` only matters whether they are over, and a clock makes them
 * over at any moment, in the order that the settings promise: the bell of a lease rings after its end.
 * Faults have a budget: `FAULTS` of any kind at any step. So have the wishes of people: replay, reprocess, rebuild, delete, retire.
 * Every `#ifdef M_…` is a mutant: it takes one guard away, and the check must then fail.
 * Variables that only assertions read are called ghosts.
 */

#ifndef JOBS
#define JOBS 1          /* 1: the upload's job, version 1. 2: also the job of version 2, made by a reprocessing. */
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef RELAYS
#define RELAYS 1
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef WISHES
#define WISHES 1
#endif
#ifndef CRASHES_MAX
#define CRASHES_MAX 2   /* `crashesMax` */
#endif
#ifndef FAILURES_MAX
#define FAILURES_MAX 2  /* `attemptsMax` */
#endif
#ifndef MESSAGES_MAX
#define MESSAGES_MAX 2  /* Copies of one job's message in the broker, beside those that are held. They are all alike. */
#endif
#define WINDOW 1        /* Jobs announced and unclaimed, `takeDue`. */
#ifdef POISON
#define ATTEMPTS (CRASHES_MAX + FAILURES_MAX + 2 * FAULTS + 2 * WISHES)
#else
#define ATTEMPTS (1 + FAULTS + WISHES) /* Every attempt but the first costs a fault or a wish. */
#endif

/* States of a job; an attachment shows QUEUED, PROCESSING, READY or FAILED. */
#define NONE 0
#define QUEUED 1
#define PROCESSING 2
#define SUCCEEDED 3
#define READY 3
#define FAILED 4
#define SUPERSEDED 5
#define CANCELLED 6

#define BIT(n) (1 << (n))

/* A branch that no search ever takes proves nothing: with one of these numbers the check must fail at it. */
#ifndef PROBE
#define PROBE 0
#endif

/* ------------------------------------------------------------------ the store's rows, the objects, the messages */

typedef Job {
  unsigned state : 3;
  unsigned crashes : 3;
  unsigned failures : 3;
  unsigned fence : 4;
  unsigned attempt : 4;      /* `attempt_id`: never given twice, unlike a fence that somebody resets. */
  bool rebuild;
  bool early;                /* `not_before` is still to come. */
  bool over;                 /* `lease_until` is over. */
  bool bell;                 /* `ring_at` is set. */
  bool due;                  /* `ring_at` is over. */
  bool rung;                 /* `rung_at` is set. */
  unsigned messages : 2;     /* Copies in the broker that nobody holds. */
  unsigned pictures : 12;    /* Attempts of which the variants are in the storage. */
  unsigned folders : 12;     /* Clean-ups: folders of attempts. */
  unsigned replaced : 12;    /* Clean-ups: sets that a newer one replaced. */
  /* Ghosts. */
  unsigned topFence : 4;
  unsigned died : 3;         /* Attempts of this generation that ended without a word. */
  unsigned failed : 3;       /* Failures of this generation. */
  bool settled;              /* In this generation. */
#ifdef M_SHARED_KEYS
  unsigned writer : 4;       /* Who wrote the one set that all attempts share. */
#endif
}
Job job[JOBS];

/* The attachment's row. What it shows is the set of attempt `set` of the job of `version`. */
bool row, deleted, stagingGone;
unsigned shown : 3;
unsigned version : 2;        /* 0: nothing published. */
unsigned set : 4;
unsigned original : 4;       /* The attempt of version 1 whose copy of the original is named; 0: none. */

bool staging;                /* The object. */
unsigned originals : 12;     /* Attempts of version 1 whose copy of the original is in the storage. */
bool cleanStaging, cleanAll; /* Clean-ups: the staging object, the attachment's whole folder. */

/* A put that lands after its caller gave up: the attempt of a job. */
bool late;
unsigned lateOf : 1;
unsigned lateAttempt : 4;

unsigned faults : 3 = FAULTS;
unsigned wishes : 3 = WISHES;

#define unfinished(j) (job[j].state == QUEUED || job[j].state == PROCESSING)
#define living (row && !deleted)

/* What must not be deleted: `namedAmong` in src/postgres/cleanups.ts. */
#define runs(j, a) (job[j].state == PROCESSING && job[j].attempt == (a))
#define namedSet(j, a) (living && ((version == (j) + 1 && set == (a)) || runs(j, a)))
#define namedOriginal(a) (living && (original == (a) || runs(0, a)))
#define namedStaging (living && !stagingGone)
#ifdef M_RUNNING_UNSEEN
#define seesSet(j, a) (living && version == (j) + 1 && set == (a))
#define seesOriginal(a) (living && original == (a))
#else
#define seesSet(j, a) namedSet(j, a)
#define seesOriginal(a) namedOriginal(a)
#endif
#if defined(M_NO_LOOKUP) || defined(M_SEARCH_BLIND)
#define SEARCH_LOOKS 0
#else
#define SEARCH_LOOKS 1
#endif
#if defined(M_NO_LOOKUP) || defined(M_PASS_BLIND)
#define PASS_LOOKS 0
#else
#define PASS_LOOKS 1
#endif

#ifdef M_SHARED_KEYS
#define SLOT(a) 1
#define whole(j, a) ((job[j].pictures & BIT(1)) && job[j].writer == (a))
#else
#define SLOT(a) (a)
#define whole(j, a) (job[j].pictures & BIT(a))
#endif

/* Asked after every step that writes a row or removes an object. */
inline check() {
  /* Who was answered with 202 has a row, and a row that shows work has an unfinished job and its bytes. */
  assert(!answered || row);                                                                              /* I1 I3 */
  assert(!living || (shown != QUEUED && shown != PROCESSING) || (unfinished(0) && staging));             /* I1 */
  /* `unfinished_has_a_bell` and `only_a_bell_is_rung` of src/postgres/schema.sql: no job is forgotten, none is rung after its end. */
  assert(unfinished(0) == job[0].bell && (job[0].bell || !job[0].rung));                                 /* I6 */
#if JOBS > 1
  assert(unfinished(1) == job[1].bell && (job[1].bell || !job[1].rung));                                 /* I6 */
#endif
  /* What `ready` names is there, whole and unchanged. */
  assert(!living || shown != READY || ((originals & BIT(original)) && whole(version - 1, set)))          /* I11 */
}

/* ------------------------------------------------------------------ step 1, accept: src/pipeline/accept.ts */

#define BEFORE 0
#define STAGED 1
#define OVER 2
#define TOLD 3               /* Of a mutant: answered and not committed. */
unsigned upload : 2;
bool answered;               /* With 202. A ghost. */
bool pending;                /* A commit whose answer did not come and which the server may still make. */
bool old;                    /* The upload is older than `uploadMsMax`, and its object than `orphanMs`. */

/* `accept` in src/postgres/attachments.ts: attachment and job in one statement. */
inline accept() {
  assert(job[0].state == NONE); /* I4 */
  assert(staging);              /* I3 */
  row = 1; shown = QUEUED;
  job[0].state = QUEUED; job[0].bell = 1; job[0].due = 1;
  check()
}

inline keepStaging() {
#ifdef M_STAGING_DELETED
  staging = 0
#else
  skip
#endif
}

active proctype api() {
end:
  do
  /* A put, and the look at what it put. */
  :: d_step { upload == BEFORE -> staging = 1; upload = STAGED }
#ifdef M_ANSWER_BEFORE_COMMIT
  :: d_step { upload == STAGED && !old -> answered = 1; upload = TOLD; check() }
  :: d_step { upload == TOLD && !old -> accept(); upload = OVER }
#else
  :: d_step { upload == STAGED && !old -> accept(); answered = 1; upload = OVER; check() }
#endif
  /* The commit's answer is lost, and so is that of the reading back: 503, nothing is deleted. */
  :: d_step { upload == STAGED && !old && faults > 0 -> faults--; accept(); keepStaging(); upload = OVER; check() }
  /* The same, and the server has not committed yet. */
  :: d_step { upload == STAGED && !old && faults > 0 -> faults--; pending = 1; keepStaging(); upload = OVER }
  :: d_step { pending -> pending = 0; accept() }
  :: d_step { pending -> pending = 0 }
  /* Certainly not committed, or too old: no row ever names the object. */
  :: d_step { upload == STAGED && faults > 0 -> faults--; staging = 0; upload = OVER }
  :: d_step { upload == STAGED && old -> staging = 0; upload = OVER }
  /* Dies. */
  :: d_step { upload == STAGED && faults > 0 -> faults--; upload = OVER }
  od
}

/* ------------------------------------------------------------------ step 2, relay: src/pipeline/relay.ts, src/postgres/bells.ts */

#define IDLE 0
#define PUBLISHING 1
#define MARKING 2

typedef Relay {
  unsigned pc : 2;
  unsigned on : 1;
  bool current;              /* `rings` of the row is this relay's: nobody has taken the bell since. */
  bool had;                  /* The broker has had this ring. A ghost. */
}
Relay relay[RELAYS];
#define R relay[r]

#if JOBS > 1
#define announced ((job[0].state == QUEUED && job[0].rung) + (job[1].state == QUEUED && job[1].rung))
#else
#define announced (job[0].state == QUEUED && job[0].rung)
#endif
/* Leases and repeated rings need no place in the window. */
#ifdef M_RERING_NEEDS_PLACE
#define hasPlace(j) (announced < WINDOW)
#else
#define hasPlace(j) (job[j].state == PROCESSING || job[j].rung || announced < WINDOW)
#endif

/* `takeDue`: `rings + 1`, so that a mark of an earlier ring finds another number. */
inline takeDue(r, j) {
  job[j].due = 0; job[j].rung = 1;
  relay[0].current = relay[0].current && relay[0].on != (j);
#if RELAYS > 1
  relay[1].current = relay[1].current && relay[1].on != (j);
#endif
  R.on = j; R.current = 1; R.had = 0;
#ifdef M_MARK_BEFORE_CONFIRM
  R.pc = MARKING;
#else
  R.pc = PUBLISHING;
#endif
  check()
}

inline rest(r) { R.pc = IDLE; R.on = 0; R.current = 0; R.had = 0 }

inline more(j) {
  if :: job[j].messages < MESSAGES_MAX -> job[j].messages++ :: else fi
}

#if defined(M_MARK_WITHOUT_RUNG)
#define mayMark(r) (R.current && !job[R.on].due)
#elif defined(M_MARK_WITHOUT_RINGS)
#define mayMark(r) (job[R.on].rung && !job[R.on].due)
#elif defined(M_MARK_WHEN_DUE)
#define mayMark(r) (R.current && job[R.on].rung)
#else
#define mayMark(r) (R.current && job[R.on].rung && !job[R.on].due)
#endif

/* `markRung` */
inline markRung(r) {
  assert(R.had); /* I14 */
  if
  :: mayMark(r) ->
     assert(!job[R.on].due) /* I16 a bell that was hastened is not put off. */;
     job[R.on].bell = 1; job[R.on].due = 0;
     check();
     assert(R.current && job[R.on].rung) /* I17 a late mark moves nobody else's bell. */
  :: else
  fi
}

proctype relayer(byte r) {
end:
  do
  :: d_step { R.pc == IDLE && job[0].bell && job[0].due && hasPlace(0) -> takeDue(r, 0) }
#if JOBS > 1
  :: d_step { R.pc == IDLE && job[1].bell && job[1].due && hasPlace(1) -> takeDue(r, 1) }
#endif
#ifdef M_MARK_BEFORE_CONFIRM
  :: d_step { R.pc == MARKING -> markRung(r); R.pc = PUBLISHING }
  :: d_step { R.pc == PUBLISHING -> more(R.on); rest(r) }
#else
  /* Confirmed. */
  :: d_step { R.pc == PUBLISHING -> more(R.on); R.had = 1; R.pc = MARKING }
  :: d_step { R.pc == MARKING -> markRung(r); rest(r) }
  /* The confirmation is lost. */
  :: d_step { R.pc == PUBLISHING && faults > 0 -> faults--; more(R.on); rest(r) }
#endif
  /* Dies, or the broker or the store did not get it: all the same, it forgets the ring. */
  :: d_step { R.pc != IDLE && faults > 0 -> faults--; rest(r) }
  od
}

/* ------------------------------------------------------------------ steps 3 to 7, worker: src/pipeline/worker.ts, render.ts, outcome.ts */

#define CLAIMING 1           /* Holds a delivery: only within a step. */
#define READING_BACK 2       /* The answer to the claim was lost. */
#define RENDERING 3
#define COPYING 4
#define STORING 5
#define SETTLING 6
#define FAILING 7
#define LOSING 8             /* The source is gone: fails with `staging_lost`. */
#define RELEASING 9
#define ACKING 10

typedef Worker {
  unsigned pc : 4;
  unsigned on : 1;
  unsigned fence : 4;
  unsigned attempt : 4;
  bool first;                /* No original was published when it claimed. */
  bool unknown;              /* A write had an unknown outcome. */
  bool held;                 /* The broker still keeps its message for it. */
  bool ended;                /* Its end, or the refusal of its claim, is durable. A ghost. */
}
Worker worker[WORKERS];
#define W worker[w]
#define J job[W.on]

#define works(w, j) (worker[w].pc >= READING_BACK && worker[w].pc <= RELEASING && worker[w].on == (j) && worker[w].attempt == job[j].attempt)
#if WORKERS > 1
#define alive(j) (works(0, j) || works(1, j))
#else
#define alive(j) works(0, j)
#endif

/* Forgets everything, silently: its message comes again. Also what a death does. */
inline drop(w) {
  if :: W.held -> more(W.on) :: else fi;
  W.pc = IDLE; W.on = 0; W.fence = 0; W.attempt = 0; W.first = 0; W.unknown = 0; W.held = 0; W.ended = 0
}

/* A claim lost its lease, or a write its guard: silent, no ack. */
inline beLost(w) {
#ifdef M_LATE_ACK
  W.pc = ACKING
#else
  drop(w)
#endif
}

/* No bell and no lease any more. */
inline endJob(j, to) {
  job[j].state = to; job[j].rebuild = 0; job[j].early = 0; job[j].over = 0;
  job[j].bell = 0; job[j].due = 0; job[j].rung = 0
}

/* Only a first version takes its attachment along: `setAttachmentState` in src/postgres/claims.ts. */
inline display(to) { if :: version == 0 -> shown = to :: else fi }

#ifdef M_LEASE_IGNORED
#define leased(j) 0
#else
#define leased(j) (job[j].state == PROCESSING && !job[j].over)
#endif
#ifdef M_CLAIM_READS_BELL
#define notYet(j) (job[j].state == QUEUED && !job[j].due)
#else
#define notYet(j) (job[j].state == QUEUED && job[j].early)
#endif
#ifdef M_BUDGET_ENDLESS
#define spent(j) 0
#else
#define spent(j) (job[j].crashes + 1 >= CRASHES_MAX)
#endif
#ifdef OLD_BUILD
#define supports(w, j) ((w) != 0 || (j) == 0) /* Worker 0 has no recipe of version 2. */
#else
#define supports(w, j) 1
#endif
#ifdef M_VERSION_AT_CLAIM
#define outdated(j) (job[j].rebuild -> version > (j) + 1 : version >= (j) + 1)
#define newerShown(j) 0
#else
#define outdated(j) 0
#define newerShown(j) (job[j].rebuild -> version > (j) + 1 : version >= (j) + 1)
#endif

/*
 * Acks are not fenced: a late one takes whatever copy there is. So: only after a durable end of its own, or a refusal.
 */
inline acknowledge(w) {
  assert(W.ended); /* I13 I15 */
  if
  :: W.held -> W.held = 0
  :: !W.held && J.messages > 0 ->
     assert(PROBE != 6); /* reached */
     J.messages--
  :: else
  fi
}

/* `beginAttempt` */
inline begin(w) {
  assert(J.state != PROCESSING || J.over);                           /* I12 */
  assert(J.died < CRASHES_MAX && J.failed < FAILURES_MAX);           /* I6 within its budgets. */
#ifndef M_CRASH_UNCOUNTED
  if :: J.state == PROCESSING -> J.crashes++ :: else fi;
#endif
  J.state = PROCESSING; J.fence++; J.attempt++;
  assert(J.attempt <= ATTEMPTS);
  assert(J.fence > J.topFence);                                      /* I9 */
  J.topFence = J.fence;
  J.early = 0; J.over = 0; J.due = 0; J.rung = 0; display(PROCESSING);
  W.fence = J.fence; W.attempt = J.attempt; W.first = original == 0; W.pc = RENDERING
#ifdef M_ACK_BEFORE_SETTLE
  ; acknowledge(w)
#endif
}

/* `claim` in src/postgres/claims.ts. Ends in RENDERING, or refused in ACKING. */
inline claim(w) {
  if
  :: !unfinished(W.on) || leased(W.on) || notYet(W.on) -> W.ended = 1; W.pc = ACKING
  :: else ->
     if
     :: !supports(w, W.on) -> /* `postpone`: spends nothing, rings later. */
        assert(PROBE != 3); /* reached */
        J.due = 0; J.rung = 0; W.ended = 1; W.pc = ACKING
     :: else ->
        if
        :: outdated(W.on) -> endJob(W.on, SUPERSEDED); W.ended = 1; W.pc = ACKING
        :: else ->
           if
           :: J.state == PROCESSING -> J.folders = J.folders | BIT(SLOT(J.attempt)); J.died++
           :: else
           fi;
           if
           :: J.state == PROCESSING && spent(W.on) -> /* `exhaust` */
              assert(PROBE != 2); /* reached */
              endJob(W.on, FAILED); display(FAILED); W.ended = 1; W.pc = ACKING
           :: else -> begin(w)
           fi
        fi
     fi
  fi;
  check()
}

/* The guard of every end, `lockAttempt` in src/postgres/settle.ts. */
#if defined(M_NO_FENCE)
#define holds(w) (J.state == PROCESSING)
#elif defined(M_NO_STATE)
#define holds(w) (J.fence == W.fence && J.attempt == W.attempt && J.state != CANCELLED)
#elif defined(M_FENCE_ALONE)
#define holds(w) (J.state == PROCESSING && J.fence == W.fence)
#elif defined(M_ATTEMPT_ALONE)
#define holds(w) (J.state == PROCESSING && J.attempt == W.attempt)
#else
#define holds(w) (J.state == PROCESSING && J.fence == W.fence && J.attempt == W.attempt)
#endif
#define wasCancelled(w) (J.state == CANCELLED && J.fence == W.fence && J.attempt == W.attempt)
/* What is truly the running attempt, whatever the guard says. */
#define isRunning(w) (J.state == PROCESSING && J.attempt == W.attempt && J.fence == W.fence)

inline cleanAttempt(w) { J.folders = J.folders | BIT(SLOT(W.attempt)) }

/* `settle`, and `publish` in it. `done` tells the worker's next step. */
inline settle(w) {
  if
  :: holds(w) ->
     assert(isRunning(w));                                           /* I8 */
     assert(!deleted);                                               /* I26 */
     W.ended = 1;
     if
     :: newerShown(W.on) ->
        assert(PROBE != 1); /* reached */
        endJob(W.on, SUPERSEDED); cleanAttempt(w)
     :: else ->
        assert(version <= W.on + 1);                                 /* I10 */
        assert(!J.settled); J.settled = 1;                           /* I7 */
        if
        :: version > 0 -> job[version - 1].replaced = job[version - 1].replaced | BIT(SLOT(set))
        :: else
        fi;
        version = W.on + 1; set = SLOT(W.attempt); shown = READY;
        if
        :: original == 0 -> original = SLOT(W.attempt); stagingGone = 1; cleanStaging = 1
        :: else
        fi;
        endJob(W.on, SUCCEEDED)
     fi;
     check();
     W.pc = ACKING
  :: else ->
     if
     :: wasCancelled(w) ->
        assert(PROBE != 5); /* reached */
        cleanAttempt(w); W.pc = ACKING
     /* `insist`: it may have been this very write, `ownEnd`. */
     :: !wasCancelled(w) && W.unknown && J.attempt == W.attempt && (J.state == SUCCEEDED || J.state == SUPERSEDED) ->
        assert(PROBE != 4); /* reached */
        W.pc = ACKING
     :: else -> beLost(w)
     fi
  fi
}

/* processing → queued. A retry waits, a release does not. */
inline requeue(j, wait) {
  job[j].state = QUEUED; job[j].early = wait; job[j].over = 0; job[j].due = !wait; job[j].rung = 0; display(QUEUED)
}

/* `fail` */
inline fail(w) {
  if
  :: holds(w) ->
     assert(isRunning(w));                                           /* I8 */
     assert(W.pc != LOSING);                                         /* I1 the source of a living job is never lost. */
     cleanAttempt(w); J.failures++; J.failed++; W.ended = 1;
     if
#ifdef M_FAILURES_ENDLESS
     :: 0 ->
#else
     :: J.failures >= FAILURES_MAX ->
#endif
        endJob(W.on, FAILED); display(FAILED)
     :: else -> requeue(W.on, 1)
     fi;
     check();
     W.pc = ACKING
  :: else ->
     if
     :: wasCancelled(w) -> cleanAttempt(w); W.pc = ACKING
     :: !wasCancelled(w) && W.unknown && J.attempt == W.attempt && (J.state == QUEUED || J.state == FAILED) -> W.pc = ACKING
     :: else -> beLost(w)
     fi
  fi
}

/* `release`: tried once. */
inline release(w) {
  if
  :: holds(w) ->
     assert(isRunning(w));                                           /* I8 */
     cleanAttempt(w); W.ended = 1; requeue(W.on, 0); check(); W.pc = ACKING
  :: else ->
     if
     :: wasCancelled(w) -> cleanAttempt(w); W.pc = ACKING
     :: else -> beLost(w)
     fi
  fi
}

#ifdef M_RENEW_UNFENCED
#define mayRenew(w) (J.state == PROCESSING)
#else
#define mayRenew(w) (J.state == PROCESSING && J.fence == W.fence && J.attempt == W.attempt)
#endif

/* `renew` in src/postgres/claims.ts. Left out where it changes nothing: else it could be all that ever happens. */
inline renew(w) {
  if
  :: mayRenew(w) -> assert(isRunning(w)) /* I8 */; J.over = 0; J.due = 0; J.rung = 0
  :: else ->
     assert(PROBE != 8); /* reached */
     beLost(w)
  fi
}
#define renewable(w) (W.pc >= RENDERING && W.pc <= FAILING && (J.state != PROCESSING || J.attempt != W.attempt || J.over || J.rung))

inline putPictures(of_job, by) {
  job[of_job].pictures = job[of_job].pictures | BIT(SLOT(by));
#ifdef M_SHARED_KEYS
  job[of_job].writer = by;
#endif
  check()
}

#define breaksOff(w) (W.pc >= RENDERING && W.pc <= SETTLING && faults > 0)

#ifdef OLD_BUILD
#define MAY_TAKE 1
#else
#define MAY_TAKE (w == 0 || worker[0].pc != IDLE)
#endif

inline take(w, j) { job[j].messages--; W.on = j; W.held = 1; W.pc = CLAIMING }
inline readBack(w) { if :: W.pc == RENDERING -> W.pc = READING_BACK :: else -> drop(w) fi }

proctype working(byte w) {
end:
  do
  /*
   * A delivery, and its claim. Between the two a message in hand is as one in the broker: it may be lost or come again.
   * Workers are alike: of two that are idle the first one takes.
   */
  :: d_step { W.pc == IDLE && MAY_TAKE && job[0].messages > 0 -> take(w, 0); claim(w) }
  /* The claim's answer is lost: read back by its attempt, `readAttempt`. A refusal is not known then, and not acked. */
  :: d_step { W.pc == IDLE && MAY_TAKE && job[0].messages > 0 && faults > 0 -> faults--; take(w, 0); claim(w); readBack(w) }
#if JOBS > 1
  :: d_step { W.pc == IDLE && MAY_TAKE && job[1].messages > 0 -> take(w, 1); claim(w) }
  :: d_step { W.pc == IDLE && MAY_TAKE && job[1].messages > 0 && faults > 0 -> faults--; take(w, 1); claim(w); readBack(w) }
#endif
  :: d_step { W.pc == READING_BACK -> if :: isRunning(w) -> W.pc = RENDERING :: else -> drop(w) fi }

  /* Step 4: reads the source, and makes the pictures. */
#if defined(POISON) && POISON == 1
  :: d_step { W.pc == RENDERING -> drop(w) }        /* This picture kills every worker. */
#elif defined(POISON) && POISON == 2
  :: d_step { W.pc == RENDERING -> W.pc = FAILING } /* This one fails every time. */
#else
  :: d_step { W.pc == RENDERING -> if :: (W.first -> staging : (originals & BIT(original)) != 0) -> if :: W.first -> W.pc = COPYING :: else -> W.pc = STORING fi :: else -> W.pc = LOSING fi }
#endif
  :: d_step { (W.pc == RENDERING || W.pc == COPYING) && faults > 0 -> faults--; W.pc = FAILING }

  /* Step 5: puts below its own prefix; the original's copy is made of staging on the server, beside the rendering. */
  :: d_step { W.pc == COPYING -> if :: staging -> originals = originals | BIT(SLOT(W.attempt)); W.pc = STORING :: else -> W.pc = LOSING fi }
  :: d_step { W.pc == STORING -> putPictures(W.on, W.attempt); W.pc = SETTLING }
  /* The put is not answered, and lands later. */
  :: d_step { W.pc == STORING && faults > 0 && !late -> faults--; late = 1; lateOf = W.on; lateAttempt = W.attempt; W.pc = RELEASING }

  /* Step 6. An answer that is lost leaves the write done, and it is asked for again. */
  :: d_step { W.pc == SETTLING -> settle(w) }
  :: d_step { W.pc == SETTLING && holds(w) && faults > 0 -> faults--; settle(w); W.unknown = 1; W.pc = SETTLING }
  :: d_step { (W.pc == FAILING || W.pc == LOSING) -> fail(w) }
  :: d_step { W.pc == FAILING && holds(w) && faults > 0 -> faults--; fail(w); W.unknown = 1; W.pc = FAILING }
  :: d_step { W.pc == RELEASING -> release(w) }
  :: d_step { W.pc == RELEASING && holds(w) && faults > 0 -> faults--; release(w); drop(w) }
  /* Its own deadline, a drain, or a dependency that is away: gives the claim back. */
  :: d_step { breaksOff(w) -> faults--; W.pc = RELEASING }
  :: d_step { renewable(w) -> renew(w) }

  /* Step 7. */
  :: d_step { W.pc == ACKING -> acknowledge(w); W.held = 0; drop(w) }

  /* Dies, at any step. */
  :: d_step { W.pc != IDLE && faults > 0 -> faults--; drop(w) }
  od
}

/* ------------------------------------------------------------------ step 8, janitor: src/pipeline/janitor.ts, strays.ts */

#define FOLDER 1             /* Of an attempt. */
#define REPLACED 2
#define STAGING 3
#define ALL 4

/* The pass under way: a clean-up that was looked up, and what of it is to be kept. */
unsigned pass : 3;
unsigned passOf : 1;
unsigned passAttempt : 4;
bool keepsSet, keepsOriginal;

inline lowest(mask, found) {
  found = 1;
  do :: (mask) & BIT(found) -> break :: else -> found++ od
}

inline rested() { pass = 0; passOf = 0; passAttempt = 0; keepsSet = 0; keepsOriginal = 0 }

inline lookUp(kind, j, mask) {
  pass = kind; passOf = j; lowest(mask, passAttempt);
  keepsSet = PASS_LOOKS && seesSet(j, passAttempt);
  keepsOriginal = PASS_LOOKS && (j) == 0 && seesOriginal(passAttempt)
}

/* Nothing goes that is named or may still be settled, looked up or not. */
inline removeSet(j, a) {
  assert(!(job[j].pictures & BIT(a)) || !namedSet(j, a));            /* I20 */
  job[j].pictures = job[j].pictures & ~BIT(a)
}
inline removeOriginal(a) {
  assert(!(originals & BIT(a)) || !namedOriginal(a));                /* I20 */
  originals = originals & ~BIT(a)
}
inline removeStaging() {
  assert(!staging || !namedStaging);                                 /* I20 */
  staging = 0
}

inline remove() {
  if
  :: pass == FOLDER ->
     if :: !keepsSet -> removeSet(passOf, passAttempt) :: else fi;
     if :: passOf == 0 && !keepsOriginal -> removeOriginal(passAttempt) :: else fi
  :: pass == REPLACED -> if :: !keepsSet -> removeSet(passOf, passAttempt) :: else fi
  :: pass == STAGING -> if :: !keepsOriginal -> removeStaging() :: else fi
  :: pass == ALL ->
     assert(deleted);
     job[0].pictures = 0; originals = 0;
#if JOBS > 1
     job[1].pictures = 0;
#endif
  fi;
  check()
}

/* `passedCleanup`: the row goes. */
inline passed() {
  if
  :: pass == FOLDER -> job[passOf].folders = job[passOf].folders & ~BIT(passAttempt)
  :: pass == REPLACED -> job[passOf].replaced = job[passOf].replaced & ~BIT(passAttempt)
  :: pass == STAGING -> cleanStaging = 0
  :: pass == ALL -> cleanAll = 0
  fi
}

/* The search for strays: an object that nobody names and for which no clean-up waits. */
#define straySet(j, a) ((job[j].pictures & BIT(a)) && !(SEARCH_LOOKS && seesSet(j, a)) && !((job[j].folders | job[j].replaced) & BIT(a)) && !cleanAll)
#define strayOriginal(a) ((originals & BIT(a)) && !(SEARCH_LOOKS && seesOriginal(a)) && !(job[0].folders & BIT(a)) && !cleanAll)
#ifdef M_ORPHAN_YOUNG
#define isOld 1
#else
/* An upload that is under way is younger than `orphanMs`. */
#define isOld (row || old)
#endif
#define strayStaging (staging && upload != BEFORE && isOld && !(SEARCH_LOOKS && namedStaging) && !cleanStaging)

#define SEARCH(j, a) :: d_step { straySet(j, a) -> job[j].folders = job[j].folders | BIT(a) }
#define SEARCH_ORIGINAL(a) :: d_step { strayOriginal(a) -> job[0].folders = job[0].folders | BIT(a) }

active proctype janitor() {
end:
  do
  :: d_step { !pass && job[0].folders -> lookUp(FOLDER, 0, job[0].folders) }
  :: d_step { !pass && job[0].replaced -> lookUp(REPLACED, 0, job[0].replaced) }
#if JOBS > 1
  :: d_step { !pass && job[1].folders -> lookUp(FOLDER, 1, job[1].folders) }
  :: d_step { !pass && job[1].replaced -> lookUp(REPLACED, 1, job[1].replaced) }
#endif
  :: d_step { !pass && cleanStaging -> pass = STAGING; keepsOriginal = PASS_LOOKS && namedStaging }
  :: d_step { !pass && cleanAll -> pass = ALL }
  :: d_step { pass -> remove(); passed(); rested() }
  /* Dies after deleting, before the row's end; or before deleting. */
  :: d_step { pass && faults > 0 -> faults--; remove(); rested() }
  :: d_step { pass && faults > 0 -> faults--; rested() }
#ifndef M_NO_SEARCH
  SEARCH(0, 1) SEARCH(0, 2) SEARCH(0, 3) SEARCH(0, 4) SEARCH(0, 5) SEARCH(0, 6)
  SEARCH_ORIGINAL(1) SEARCH_ORIGINAL(2) SEARCH_ORIGINAL(3) SEARCH_ORIGINAL(4) SEARCH_ORIGINAL(5) SEARCH_ORIGINAL(6)
#if JOBS > 1
  SEARCH(1, 1) SEARCH(1, 2) SEARCH(1, 3) SEARCH(1, 4) SEARCH(1, 5) SEARCH(1, 6)
#endif
  :: d_step { strayStaging -> cleanStaging = 1 }
#endif
  od
}

/* ------------------------------------------------------------------ clocks */

/* `ring_at` of a lease lies behind the lease's end; that of a retry is its `not_before`. */
#ifdef M_LEASE_SILENT
#define mayRing(j) (job[j].state == QUEUED && !job[j].early)
#else
#define mayRing(j) (job[j].state == QUEUED && !job[j].early || job[j].state == PROCESSING && (job[j].over || job[j].rung))
#endif

proctype clock(byte j) {
end:
  do
  :: d_step { job[j].bell && !job[j].due && mayRing(j) -> job[j].due = 1 }
  :: d_step { job[j].state == QUEUED && job[j].early -> job[j].early = 0; job[j].due = 1 }
  /* A living worker renews in time: when its lease ends all the same, that is a fault. */
  :: d_step { job[j].state == PROCESSING && !job[j].over && !alive(j) -> job[j].over = 1 }
  :: d_step { job[j].state == PROCESSING && !job[j].over && alive(j) && faults > 0 -> faults--; job[j].over = 1 }
  od
}

active proctype upload_clock() {
end:
  do
  :: d_step { upload != BEFORE && !row && !pending && !old -> old = 1 }
  od
}

/* ------------------------------------------------------------------ the broker and the storage, at their worst */

active proctype world() {
end:
  do
#if JOBS > 1
  /* Wiped, or rolled back: nothing is left, and acks of what was held mean other messages. */
  :: d_step { faults > 0 && (job[0].messages || job[1].messages || worker[0].held || worker[WORKERS - 1].held) ->
     faults--; job[0].messages = 0; job[1].messages = 0; worker[0].held = 0; worker[WORKERS - 1].held = 0 }
  :: d_step { faults > 0 && job[1].messages > 0 -> faults--; job[1].messages-- }
  :: d_step { faults > 0 && job[1].messages == 1 -> faults--; job[1].messages++ }
#else
  :: d_step { faults > 0 && (job[0].messages || worker[0].held || worker[WORKERS - 1].held) ->
     faults--; job[0].messages = 0; worker[0].held = 0; worker[WORKERS - 1].held = 0 }
#endif
  /* One is lost; one is doubled. */
  :: d_step { faults > 0 && job[0].messages > 0 -> faults--; job[0].messages-- }
  :: d_step { faults > 0 && job[0].messages == 1 -> faults--; job[0].messages++ }
  /* Delivered again although its worker lives. */
  :: d_step { faults > 0 && worker[0].held -> faults--; worker[0].held = 0; more(worker[0].on) }
#if WORKERS > 1
  :: d_step { faults > 0 && worker[1].held -> faults--; worker[1].held = 0; more(worker[1].on) }
#endif
  /* A put lands late: of pictures, or a double of the staging object. */
  :: d_step { late ->
     assert(PROBE != 7 || job[lateOf].state != SUCCEEDED); /* reached */
     putPictures(lateOf, lateAttempt); late = 0; lateOf = 0; lateAttempt = 0 }
  :: d_step { faults > 0 && row && !staging -> faults--; staging = 1 }
#ifndef LIVE
  /* All faults and wishes may stay away: then everything comes to rest. */
  :: d_step { faults > 0 || wishes > 0 -> faults = 0; wishes = 0 }
#endif
  od
}

/* ------------------------------------------------------------------ what people ask for */

#ifdef M_REPLAY_BLIND
#define sourceGone 0
#else
#define sourceGone (original == 0 && stagingGone)
#endif

/* `beginGeneration` in src/postgres/generations.ts: the fence goes on. */
inline beginGeneration(j, again) {
  job[j].state = QUEUED; job[j].rebuild = again; job[j].crashes = 0; job[j].failures = 0;
  job[j].early = 0; job[j].bell = 1; job[j].due = 1; job[j].rung = 0;
  job[j].died = 0; job[j].failed = 0; job[j].settled = 0;
#ifdef M_FENCE_RESET
  job[j].fence = 0;
#endif
}

/* `replay` */
#define replayable(j) (living && job[j].state == FAILED && version <= (j) + 1 && !sourceGone)
inline replay(j) { wishes--; beginGeneration(j, version == (j) + 1); display(QUEUED); check() }

/* `rebuild`: the doctor's, of the published version. It may be mistaken: the set may be whole. */
#define rebuildable(j) (living && shown == READY && version == (j) + 1 && (job[j].state == SUCCEEDED || job[j].state == FAILED))
inline makeAnew(j) { wishes--; beginGeneration(j, 1); check() }

/* `deleteAttachment` in src/postgres/attachments.ts. An attempt that ran has ended with it. */
inline cancel(j) {
  if
  :: unfinished(j) ->
#ifndef M_DELETE_KEEPS_JOB
     worker[0].ended = worker[0].ended || works(0, j);
     worker[WORKERS - 1].ended = worker[WORKERS - 1].ended || works(WORKERS - 1, j);
     endJob(j, CANCELLED)
#else
     skip
#endif
  :: else
  fi
}

active proctype people() {
end:
  do
  :: d_step { wishes > 0 && replayable(0) -> replay(0) }
  :: d_step { wishes > 0 && rebuildable(0) -> makeAnew(0) }
#if JOBS > 1
  /* `reprocess` in src/postgres/reprocessings.ts: made once, and replayed when it failed. */
#ifdef M_REPROCESS_BLIND
  :: d_step { wishes > 0 && living && shown == READY && version < 2 ->
#else
  :: d_step { wishes > 0 && living && shown == READY && version < 2 && job[1].state == NONE ->
#endif
     wishes--; assert(job[1].state == NONE) /* I4 */; job[1].state = QUEUED; job[1].bell = 1; job[1].due = 1; check() }
  :: d_step { wishes > 0 && replayable(1) -> replay(1) }
  :: d_step { wishes > 0 && rebuildable(1) -> makeAnew(1) }
#endif
  /* `retire` in src/postgres/retention.ts: the staging of what failed is given up. */
  :: d_step { wishes > 0 && living && shown == FAILED && job[0].state == FAILED && !stagingGone -> wishes--; stagingGone = 1; cleanStaging = 1; check() }
  :: d_step { wishes > 0 && living ->
     wishes--; cancel(0);
#if JOBS > 1
     cancel(1);
#endif
     deleted = 1; stagingGone = 1; set = 0; cleanStaging = 1; cleanAll = 1; check() }
  od
}

/* ------------------------------------------------------------------ what must hold at rest, and in the end */

#define onlyNamed(j) (job[j].pictures == (living && version == (j) + 1 -> BIT(set) : 0) && !job[j].folders && !job[j].replaced)

#ifndef LIVE
/* When nothing can happen any more: every job is over, no message is left, and the objects are those that rows name. */
active proctype rest_of_all() {
  timeout;
#if PROBE == 9
  assert(version < 2); /* reached */
#endif
  assert(!unfinished(0) && job[0].messages == 0);                                  /* I6 */
  assert(onlyNamed(0));                                                            /* I19 I26 */
#if JOBS > 1
  assert(!unfinished(1) && job[1].messages == 0);                                  /* I6 */
  assert(onlyNamed(1));                                                            /* I19 I26 */
#endif
  assert(originals == (living && original -> BIT(original) : 0));                  /* I19 I26 */
  assert(staging == namedStaging && !cleanStaging && !cleanAll)                    /* I19 I26 */
}
#endif

init {
  atomic {
    run clock(0);
#if JOBS > 1
    run clock(1);
#endif
    run relayer(0);
#if RELAYS > 1
    run relayer(1);
#endif
    run working(0);
#if WORKERS > 1
    run working(1);
#endif
  }
}

#ifdef LIVE
#define u0 unfinished(0)
#define silent (unfinished(0) && !job[0].due && job[0].messages == 0 && !alive(0) && worker[0].pc == IDLE && worker[WORKERS - 1].pc == IDLE && relay[0].pc == IDLE)
/* I6: every job finishes, once the faults stop. */
ltl finishes { [] (u0 -> <> !u0) }
/* No silence lasts: nobody works on it, no message is on its way, no bell rings. */
ltl rings { [] (silent -> <> !silent) }
#endif
