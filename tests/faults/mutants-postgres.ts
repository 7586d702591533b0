/** Mutants of the SQL: each takes one guard or one count out of a transition. They die on a real PostgreSQL. */
import type { Mutant, Patch } from './mutants.ts';

const of =
  (file: string) =>
  (find: string, replace: string): Patch => ({ file: `src/postgres/${file}.ts`, find, replace });
const attachments = of('attachments');
const bells = of('bells');
const claims = of('claims');
const cleanups = of('cleanups');
const generations = of('generations');
const publications = of('publication');
const settles = of('settle');

const mutant = (name: string, kills: Mutant['kills'], ...patches: readonly Patch[]): Mutant => ({
  name,
  kills,
  by: 'twins',
  patches,
});

/** The guard of the ends is one; here a verb calls it with neither fence nor attempt. */
const loose: readonly Patch[] = [
  settles(
    'async function lockAttempt(db: Db, attempt: Attempt): Promise',
    'async function lockAttempt(db: Db, attempt: Attempt, loose = false): Promise',
  ),
  settles(
    "       and fence = $3\n       and attempt_id = $4\n       and state = 'processing'",
    "       and ($5::boolean or (fence = $3 and attempt_id = $4))\n       and state = 'processing'",
  ),
  settles(
    '     for no key update`,\n    [attempt.jobId, attempt.attachmentId, attempt.fence, attempt.attemptId],',
    '     for no key update`,\n    [attempt.jobId, attempt.attachmentId, attempt.fence, attempt.attemptId, loose],',
  ),
];
const guard = 'const held = await lockAttempt(db, attempt);\n';
const looseGuard = 'const held = await lockAttempt(db, attempt, true);\n';
const lost = "    if (held.kind === 'lost') return { kind: 'lost', changed: false };\n";

const ofEnds: readonly Mutant[] = [
  mutant(
    'no fence in settle',
    ['I8'],
    ...loose,
    settles(`${guard}  if (held.kind === 'cancelled') await`, `${looseGuard}  if (held.kind === 'cancelled') await`),
    publications('      and jobs.fence = made.fence\n      and jobs.attempt_id = made.attempt_id\n', ''),
  ),
  mutant(
    'no fence in fail',
    ['I8'],
    ...loose,
    settles(
      `${guard}${lost}    await cleanAttempt(db, attempt, options.graceMs, held.kind === 'held' ? 'failed'`,
      `${looseGuard}${lost}    await cleanAttempt(db, attempt, options.graceMs, held.kind === 'held' ? 'failed'`,
    ),
  ),
  mutant(
    'no fence in release',
    ['I8'],
    ...loose,
    settles(
      `${guard}${lost}    await cleanAttempt(db, attempt, options.graceMs, held.kind === 'held' ? 'released'`,
      `${looseGuard}${lost}    await cleanAttempt(db, attempt, options.graceMs, held.kind === 'held' ? 'released'`,
    ),
  ),
  mutant(
    'no fence in renew',
    ['I8'],
    claims(
      "       and fence = $2\n       and attempt_id = $3\n       and state = 'processing'`",
      "       and ($2::int is not null and $3::uuid is not null)\n       and state = 'processing'`",
    ),
  ),
  mutant(
    'no state in the guard of the ends',
    ['I8', 'I7'],
    settles(
      "       and attempt_id = $4\n       and state = 'processing'\n     for no key update",
      '       and attempt_id = $4\n     for no key update',
    ),
    publications("      and jobs.state = 'processing'\n", ''),
  ),
  mutant(
    'no state in the guard of renewals',
    ['I8', 'I12'],
    claims("       and attempt_id = $3\n       and state = 'processing'`", '       and attempt_id = $3`'),
  ),
  mutant(
    'the version is guarded at the claim only',
    ['I10'],
    settles(
      'if (held.rebuild ? held.pipelineVersion > held.version : held.pipelineVersion >= held.version) {',
      'if (held.version < 0) {',
    ),
  ),
  mutant(
    'a first publication does not look at the state',
    ['I8'],
    publications("      and jobs.state = 'processing'\n", ''),
  ),
  mutant(
    'a first publication does not look whether it is the first',
    ['I10'],
    publications('        and pipeline_version = 0\n        and original_key is null\n', ''),
    publications('      and jobs.version > made.pipeline_version\n', ''),
  ),
  mutant(
    'a settle publishes what was deleted meanwhile',
    ['I26'],
    settles(
      "       and attempt_id = $4\n       and state = 'processing'\n     for no key update",
      "       and attempt_id = $4\n       and state in ('processing', 'cancelled')\n     for no key update",
    ),
    settles('if (attachment.deleted) throw new Error(', 'if (attempt.fence < 0) throw new Error('),
    publications("      and jobs.state = 'processing'\n", "      and jobs.state in ('processing', 'cancelled')\n"),
    publications('        and deleted_at is null\n', ''),
  ),
  mutant(
    'a release counts a failure in its row',
    ['I18', 'I22'],
    settles(
      "           releases = releases + case when $2 = 'released' then 1 else 0 end,",
      "           releases = releases + case when $2 = 'released' then 1 else 0 end,\n           failures = failures + case when $2 = 'released' then 1 else 0 end,",
    ),
  ),
  mutant(
    'the staging object of a published upload is left',
    ['I19'],
    publications(
      "    select staging_key, now(), 0, 'published'\n    from job\n",
      "    select staging_key, now(), 0, 'published'\n    from job\n    where false\n",
    ),
  ),
  mutant(
    'an end writes no history',
    ['I22'],
    settles(
      "     select id, 'processing', $2, fence, $4, $3, $5, $6\n     from job`",
      "     select id, 'processing', $2, fence, $4, $3, $5, $6\n     from job where $3 <> 'settled'`",
    ),
    publications(
      "    select id, 'processing', 'succeeded', fence, who, 'settled'\n    from job\n",
      "    select id, 'processing', 'succeeded', fence, who, 'settled'\n    from job\n    where false\n",
    ),
  ),
];

const ofClaims: readonly Mutant[] = [
  mutant(
    'a claim reads the bell',
    ['I6', 'I12'],
    claims('       not_before <= now() as may_begin,', '       ring_at <= now() as may_begin,'),
    claims('         and jobs.not_before <= now()\n', '         and jobs.ring_at <= now()\n'),
  ),
  mutant(
    'a claim does not look at the lease',
    ['I12'],
    claims('       lease_until <= now() as lease_over,', '       lease_until is not null as lease_over,'),
  ),
  mutant('a claim does not look at the state', ['I12'], claims("         and jobs.state = 'queued'\n", '')),
  mutant(
    'a claim writes no history',
    ['I22'],
    claims(
      "       select id, 'queued', 'processing', fence, worker, 'claimed'\n       from job\n",
      "       select id, 'queued', 'processing', fence, worker, 'claimed'\n       from job\n       where false\n",
    ),
  ),
  mutant('a claim does not count its attempt', ['I22', 'I6'], claims('  attempts = attempts + 1,\n', '')),
  mutant(
    'a claim does not count the crash before it',
    ['I22', 'I6'],
    claims(',\n             crashes = crashes + 1\n         from', '\n         from'),
  ),
  mutant(
    'crashes have no end',
    ['I6'],
    claims('if (job.crashes + 1 >= request.budgets.crashesMax) {', 'if (job.crashes < 0) {'),
  ),
  mutant(
    'a claim does not move the fence',
    ['I9'],
    claims('  fence = fence + 1,\n', '  fence = greatest(fence, 1),\n'),
  ),
  mutant(
    'a claim does not need the recipe',
    ['I18'],
    claims('if (!request.versions.includes(job.version)) {', 'if (request.versions.length === 0) {'),
    claims('         and jobs.version = any(request.versions::int[])\n', ''),
  ),
  mutant(
    'the folder of a dead attempt is left',
    ['I19'],
    claims('  await cleanDeadAttempt(db, job, request.graceMs);\n', ''),
  ),
];

const ofBells: readonly Mutant[] = [
  mutant(
    'a mark does not look whether the bell is still the relay’s',
    ['I17'],
    bells(
      '           and rings = mark.ring\n           and rung_at is not null\n',
      '           and rings = mark.ring\n           and ring_at is not null\n',
    ),
  ),
  mutant(
    'a mark does not look whose ring it is',
    ['I17'],
    bells(
      '           and rings = mark.ring\n           and rung_at is not null\n',
      '           and rung_at is not null\n',
    ),
  ),
  mutant(
    'a mark puts a hastened bell off',
    ['I16'],
    bells('           and ring_at > clock_timestamp()\n', '           and ring_at is not null\n'),
  ),
  mutant(
    'a repeated ring needs a place in the window',
    ['I6', 'I16'],
    bells(
      '       order by ring_at\n       limit $1\n',
      "       order by ring_at\n       limit least($1, greatest(0, $2 - (select count(*) from jobs where state = 'queued' and rung_at is not null)))\n",
    ),
  ),
  mutant(
    'the bell of an ended lease is silent',
    ['I6'],
    bells(
      "       where (state = 'processing' or rung_at is not null)\n         and ring_at <= now()",
      "       where state = 'queued' and rung_at is not null\n         and ring_at <= now()",
    ),
  ),
  mutant(
    'a message that was lost does not ring again for a dead attempt',
    ['I23', 'I16'],
    bells(
      '       where rung_at is not null\n         and ring_at > now()',
      "       where state = 'queued' and rung_at is not null\n         and ring_at > now()",
    ),
  ),
];

const ofKeeping: readonly Mutant[] = [
  mutant(
    'a replay starts the fence again',
    ['I9'],
    generations('           failures = 0,\n', '           failures = 0,\n           fence = 0,\n'),
  ),
  mutant(
    'a replay makes a second row',
    ['I4'],
    generations(
      "  await beginGeneration(db, job, { reason: 'replayed', who, spacingMs, rebuild });",
      `  await beginGeneration(db, job, { reason: 'replayed', who, spacingMs, rebuild });
  await db.query(
    \`insert into jobs (id, attachment_id, owner_id, version, origin, state, ring_at)
     select gen_random_uuid(), attachment_id, owner_id, version + 100, 'reprocess', 'queued', now()
     from jobs where id = $1\`,
    [job.id],
  );`,
    ),
  ),
  mutant(
    'a replay does not look whether its source is there',
    ['I1'],
    generations("return attachment.sourceGone ? 'staging_gone' : null;", 'return null;'),
  ),
  mutant(
    'a replay does not look what is published',
    ['I10', 'I7'],
    generations("if (job.state !== 'failed' || attachment.version > job.version)", "if (job.state !== 'failed')"),
  ),
  mutant(
    'what a running attempt stores is named by nobody',
    ['I20'],
    cleanups(
      "         where attachment_id = attachments.id\n           and state = 'processing'",
      "         where attachment_id = attachments.id\n           and state = 'superseded'",
    ),
  ),
  mutant(
    'staging that waits to be published is named by nobody',
    ['I20'],
    cleanups(
      'case when attachments.staging_gone_at is null then attachments.staging_key end',
      'case when attachments.staging_gone_at is not null then attachments.staging_key end',
    ),
  ),
  mutant(
    'what is deleted is still named',
    ['I26'],
    cleanups('     where id = any($1::uuid[])\n       and deleted_at is null`', '     where id = any($1::uuid[])`'),
  ),
  mutant(
    'a delete leaves the folder',
    ['I26'],
    attachments("    await addCleanup(db, { key: folder, afterMs: graceMs, passes: 1, reason: 'deleted' });\n", ''),
  ),
  mutant(
    'a delete does not end the job',
    ['I26'],
    attachments('const running = await cancelJobs(db, id);', 'const running = id.length === 0;'),
  ),
];

const ofAccept: readonly Mutant[] = [
  mutant(
    'an upload is committed without its key',
    ['I4'],
    attachments(
      '    where $17::uuid is null\n       or exists (select from answered)',
      '    where $17::uuid is null\n       or not exists (select from answered where false)',
    ),
  ),
  mutant(
    'an upload is committed without its job',
    ['I2'],
    attachments(
      "spacingMs: '$21' })}\n    from attachment\n",
      "spacingMs: '$21' })}\n    from attachment where $4 <> 'file'\n",
    ),
  ),
  mutant(
    'an upload is committed after its time',
    ['I20', 'I3'],
    attachments(
      "    where $12::timestamptz > now() - $13::float8 * interval '1 millisecond'",
      "    where $12::timestamptz > now() - ($13::float8 + 1e12) * interval '1 millisecond'",
    ),
  ),
];

/** Of what is asked at once and done by one statement: rare in the sequences of the twins, so tests of their own look at it. */
const ofBatches: readonly Mutant[] = [
  {
    name: 'two versions of one attachment are both published as the first',
    kills: ['I10', 'I7'],
    by: {
      file: 'tests/postgres/store-batches.test.ts',
      title: 'of two versions of one attachment are one, by whatever plan',
    },
    patches: [
      publications('one.attempt.attachmentId, one]));', 'one.attempt.attemptId, one]));'),
      publications('firsts.get(one.attempt.attachmentId)', 'firsts.get(one.attempt.attemptId)'),
    ],
  },
  {
    name: 'what PostgreSQL refuses of one settle it refuses of all',
    kills: ['I18'],
    by: {
      file: 'tests/postgres/store-batches.test.ts',
      title: 'with one that PostgreSQL refuses leave that one unsettled, and settle the others',
    },
    patches: [of('pool')('isOfOne: (error: unknown) => error instanceof pg.DatabaseError', 'isOfOne: () => false')],
  },
  {
    name: 'a pass that is said twice counts twice',
    kills: ['I26', 'I19'],
    by: {
      file: 'tests/postgres/store-batches.test.ts',
      title: 'are one statement, and each counts by itself',
    },
    patches: [
      cleanups(
        '         and cleanups.passes = passed.passes\n         and cleanups.passes > 0\n',
        '         and cleanups.passes > 0\n',
      ),
    ],
  },
];

export const postgresMutants: readonly Mutant[] = [
  ...ofEnds,
  ...ofClaims,
  ...ofBells,
  ...ofKeeping,
  ...ofAccept,
  ...ofBatches,
];
