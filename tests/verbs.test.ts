/** The operators' verbs as processes on a real database: what they print for people and for programs, what they change, their codes. */
import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import test from 'node:test';
import type { Role } from '../src/roles.ts';
import { register, type ShownAttachment } from './support/client.ts';
import { type Said, skrepka } from './support/command.ts';
import { onEnd } from './support/on-end.ts';
import { freshDatabase } from './support/postgres.ts';
import { startRole } from './support/role.ts';
import { startCommand } from './support/started.ts';
import { until } from './support/until.ts';

const photograph = await readFile(path.join(import.meta.dirname, 'fixtures/orientation/small_6.jpg'));
/** A JPEG that is recognised, and ends in the middle. */
const corrupt = photograph.subarray(0, 2000);
const unknownId = '019a7c3e-0000-7000-8000-000000000000';

async function prepare(t: test.TestContext, { empty = false } = {}) {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'skrepka-verbs-'));
  onEnd(t, () => rm(dataDir, { recursive: true, force: true }));
  const { url: databaseUrl, pool } = await freshDatabase(t, { empty });
  const start = (roles: readonly Role[], settings: Record<string, string> = {}) =>
    startRole(t, { roles, databaseUrl, dataDir, settings });
  const verb = (words: string, settings: Record<string, string> = {}) =>
    skrepka(words.split(' '), { DATABASE_URL: databaseUrl, DATA_DIR: dataDir, ...settings });
  return { dataDir, databaseUrl, pool, start, verb };
}

/** Everything runs, and Ada uploads. */
async function live(t: test.TestContext, settings: Record<string, string> = {}) {
  const world = await prepare(t);
  const all = await world.start(['api', 'relay', 'worker', 'janitor'], settings);
  const user = await register(() => all.url);
  const handle = String(((await (await user.ask('/v1/users/me')).json()) as { handle: string }).handle);
  const upload = async (bytes: Uint8Array, state: 'ready' | 'failed') =>
    await user.until((await user.upload(bytes)).id, state);
  return { ...world, all, user, handle, upload };
}

/** A verb that did what it was told, and what it printed as JSON. */
function parsed<T = Record<string, unknown>>({ code, stdout, stderr }: Said, expected = 0): T {
  assert.deepEqual([code, stderr], [expected, '']);
  return JSON.parse(stdout) as T;
}

interface ShownJob {
  readonly id: string;
  readonly attachment_id: string;
  readonly state: string;
  readonly generation: number;
  readonly error_code: string | null;
}

test('a job that really failed is found, understood and replayed; its owner sees code and sentence, never the detail', async (t) => {
  const { verb, user, handle, upload, all } = await live(t);
  await upload(photograph, 'ready');
  const broken = await upload(corrupt, 'failed');

  const listed = await verb(`jobs --state failed --error-code corrupt_image --owner ${handle}`);
  const [head, row, ...rest] = listed.stdout.trimEnd().split('\n');
  assert.match(head ?? '', /^JOB +STATE +CODE +VERSION +ATTEMPTS +OWNER +SINCE$/);
  assert.deepEqual(rest, []);
  assert.ok(row?.includes(handle), row);
  const { items } = parsed<{ items: ShownJob[] }>(await verb('jobs --state failed --json'));
  assert.deepEqual(
    items.map((job) => [job.attachment_id, job.error_code]),
    [[broken.id, 'corrupt_image']],
  );
  const id = items[0]?.id ?? '';

  for (const known of [id, broken.id]) {
    const { code, stdout } = await verb(`job ${known}`);
    assert.equal(code, 0);
    assert.match(stdout, /^state +failed: corrupt_image$/m);
    assert.match(stdout, /^the owner reads +The image is damaged and cannot be decoded\.$/m);
    assert.match(stdout, /^detail +decode failed: .*$/m);
    assert.match(stdout, /^1 +1 +\S+ \S+ +.+ +failed +corrupt_image /m);
    assert.match(stdout, /processing +failed +failed +corrupt_image/);
    assert.match(stdout, new RegExp(`npm run -s skrepka -- replay ${id}$`, 'm'));
  }
  const owners = (await user.attachment(broken.id)) as ShownAttachment & { error_message: string };
  assert.deepEqual(
    [owners.state, owners.error_code, owners.error_message],
    ['failed', 'corrupt_image', 'The image is damaged and cannot be decoded.'],
  );
  assert.doesNotMatch(JSON.stringify(owners), /decode failed/);

  const replayed = await verb(`replay ${id}`);
  assert.deepEqual([replayed.code, replayed.stdout], [0, `${id}  replayed: it is queued, in generation 2\n`]);
  const ofAttachment = parsed<{ items: ShownJob[] }>(await verb(`jobs --attachment ${broken.id} --json`));
  assert.deepEqual(
    ofAttachment.items.map((job) => job.id),
    [id],
  );
  await until('it failed again', async () => {
    const shown = parsed<{ job: ShownJob; attempts: { generation: number }[] }>(await verb(`job ${id} --json`));
    return shown.job.state === 'failed' && shown.attempts.map((attempt) => attempt.generation).join() === '1,2';
  });
  assert.match((await verb(`job ${id}`)).stdout, /failed +queued +replayed +- +operator cli/);
  const byAttachment = await verb(`replay ${broken.id}`);
  assert.equal(byAttachment.stdout, `${broken.id}  job ${id}  replayed: it is queued, in generation 3\n`);
  assert.equal(await all.stop(), 0);
});

test('a second replay, and one of a job that has succeeded or is not there, change nothing, say so and end with 1', async (t) => {
  const { verb, upload, all, pool } = await live(t);
  await upload(corrupt, 'failed');
  await upload(photograph, 'ready');
  // Without a worker a replayed job stays queued.
  assert.equal(await all.stop(), 0);
  const { items } = parsed<{ items: ShownJob[] }>(await verb('jobs --json'));
  const [good, bad] = [items[0]?.id ?? '', items[1]?.id ?? ''];
  assert.equal((await verb(`replay ${bad}`)).code, 0);
  const { rows } = await pool.query('select state, generation from jobs order by id');
  for (const [id, words, result] of [
    [bad, 'it is queued or running already', 'job_unfinished'],
    [good, 'it has succeeded', 'already_succeeded'],
    [unknownId, 'there is no such job', 'not_found'],
  ] as const) {
    const { code, stdout } = await verb(`replay ${id}`);
    assert.equal(code, 1);
    assert.ok(stdout.startsWith(`${id}  nothing was changed: ${words}`), stdout);
    const { results } = parsed<{ results: { result: string }[] }>(await verb(`replay ${id} --json`), 1);
    assert.equal(results[0]?.result, result);
  }
  assert.deepEqual((await pool.query('select state, generation from jobs order by id')).rows, rows);
});

test('a replay by filter counts first when asked to, then takes what fits', async (t) => {
  const { verb, upload, handle, all } = await live(t);
  await upload(corrupt, 'failed');
  await upload(corrupt, 'failed');
  assert.equal(await all.stop(), 0);
  const dry = await verb('replay --error-code corrupt_image --dry-run');
  assert.equal(dry.stdout, '2 failed jobs matched; up to 2 would be replayed. Nothing was changed.\n');
  const none = { matched: 0, replayed: 0, skipped: {} };
  assert.deepEqual(parsed(await verb('replay --error-code render_timeout --json')), none);
  assert.deepEqual(parsed(await verb('replay --older-than 1h --json')), none);
  assert.deepEqual(parsed(await verb(`replay --owner ${handle} --limit 1 --json`)), {
    matched: 2,
    replayed: 1,
    skipped: {},
  });
  assert.equal((await verb('replay --all')).stdout, '1 failed job matched, 1 replayed.\n');
  assert.equal((await verb('jobs --state failed')).stdout, 'No such jobs.\n');
  const stranger = await verb('replay --owner nobody');
  assert.deepEqual([stranger.code, stranger.stderr], [1, 'skrepka: There is no user with the handle "nobody".\n']);
});

test('what is ready is brought to the newest version and waited for; asking again makes nothing', async (t) => {
  const { verb, upload, user, all } = await live(t, { PIPELINE_VERSION: '1' });
  const { id } = await upload(photograph, 'ready');
  assert.equal(
    (await verb('reprocess --dry-run')).stdout,
    '1 ready attachment below pipeline version 2. Nothing was changed.\n',
  );
  assert.match((await verb('reprocess --progress')).stdout, /^Nobody has asked for pipeline version 2 yet\./);
  const waited = await verb('reprocess --wait');
  assert.equal(waited.code, 0, waited.stderr);
  assert.match(waited.stdout, /all is over: 0 to come, 0 unfinished, 1 succeeded, 0 failed\n$/);
  const shown = (await (await user.ask(`/v1/attachments/${id}`)).json()) as { pipeline_version: number };
  assert.equal(shown.pipeline_version, 2);
  const progress = parsed<{ matching: number; reprocessing: { succeeded: number } }>(
    await verb('reprocess --progress --json'),
  );
  assert.deepEqual([progress.matching, progress.reprocessing.succeeded], [0, 1]);
  const one = await verb(`reprocess --attachment ${id}`);
  assert.deepEqual(
    [one.code, one.stdout],
    [0, `${id}  pipeline version 2: nothing was changed: it is at the version, or above\n`],
  );
  const unknown = await verb(`reprocess --attachment ${unknownId}`);
  assert.deepEqual(
    [unknown.code, unknown.stdout],
    [1, `${unknownId}  pipeline version 2: there is no such attachment\n`],
  );
  assert.match(
    (await verb(`job ${id}`)).stdout,
    new RegExp(`It is the newest of several: .* jobs --attachment ${id}$`, 'm'),
  );

  // At version 1 still, and after the wish had ended.
  await upload(photograph, 'ready');
  const ended =
    /the wish has ended: 0 unfinished, 1 succeeded, 0 failed so far; 1 more are ready below version 2: ask again$/m;
  assert.match((await verb('reprocess --progress')).stdout, ended);
  assert.match((await verb('status')).stdout, ended);
  assert.equal(await all.stop(), 0);
});

test('one Ctrl-C that comes twice, by the terminal and by npm, ends the waiting in order', async (t) => {
  const { databaseUrl, dataDir } = await prepare(t);
  // No janitor makes its jobs: the waiting would never end.
  const waiting = startCommand(t, ['reprocess', '--wait'], { DATABASE_URL: databaseUrl, DATA_DIR: dataDir });
  await until('it waits', () => waiting.stdout().includes('under way'));
  void waiting.ctrlC();
  assert.equal(await waiting.ctrlC(), 0);
  assert.match(waiting.stdout(), /^It was ended early: /m);
});

test('a deleted variant is found, made anew on request, and found no more', async (t) => {
  const { verb, upload, user, dataDir, all } = await live(t);
  const { id } = await upload(photograph, 'ready');
  const whole = await user.attachment(id);
  assert.match((await verb('doctor')).stdout, /: 0 findings\.\n$/);
  const blobs = path.join(dataDir, 'blobs');
  const names = await readdir(blobs, { recursive: true });
  const lost = names.find((name) => name.includes(id) && name.includes('thumbnail')) ?? assert.fail(names.join());
  await rm(path.join(blobs, lost));

  const found = await verb('doctor');
  assert.equal(found.code, 1);
  assert.match(found.stdout, /^lost_variant +doctor --repair +/m);
  const { findings } = parsed<{ findings: { kind: string; attachment_id: string; repair: string }[] }>(
    await verb('doctor --json'),
    1,
  );
  assert.deepEqual(
    findings.map((finding) => [finding.kind, finding.attachment_id, finding.repair]),
    [['lost_variant', id, 'possible']],
  );
  const repaired = await verb('doctor --repair');
  assert.equal(repaired.code, 0, repaired.stdout);
  assert.match(repaired.stdout, /^lost_variant +being made anew +/m);
  await until('it is whole again', async () => (await verb('doctor')).code === 0);
  await user.assertWhole(await user.attachment(id), photograph);
  assert.equal((await user.attachment(id)).variants.length, whole.variants.length);
  assert.equal(await all.stop(), 0);
});

test('what only its bytes show is repaired by what found it, and keys of others are told without being a fault', async (t) => {
  const { verb, upload, dataDir, all } = await live(t);
  const { id } = await upload(photograph, 'ready');
  const blobs = path.join(dataDir, 'blobs');
  const names = await readdir(blobs, { recursive: true });
  const name = names.find((one) => one.includes(id) && one.includes('thumbnail')) ?? assert.fail(names.join());
  const bytes = await readFile(path.join(blobs, name));
  await rm(path.join(blobs, name));
  await writeFile(
    path.join(blobs, name),
    bytes.map((byte) => byte ^ 1),
  );
  await writeFile(path.join(blobs, 'Notes\u001b[2J.txt'), 'of somebody else');
  const young = await verb('doctor');
  assert.deepEqual([young.code, /Notes/.test(young.stdout)], [0, false]);
  const found = await verb('doctor --deep');
  assert.equal(found.code, 1);
  assert.match(found.stdout, /^damaged +doctor --deep --repair +/m);
  assert.match(found.stdout, /^To repair what can be: doctor --deep --repair$/m);
  const repaired = await verb('doctor --deep --repair');
  assert.equal(repaired.code, 0, repaired.stdout);
  const settings = { CLEANUP_GRACE: '6s', LEASE: '6s', RENEW: '1500ms', LEASE_RESERVE: '1s', RENDER_TIMEOUT: '5s' };
  const told = await until('it is old enough', async () => {
    const said = await verb('doctor', settings);
    return said.stdout.includes('Notes') && !said.stdout.includes('being made') && said;
  });
  assert.match(told.stdout, /^stray +cannot be repaired +Notes\\u\{1b\}\[2J\.txt +no key of ours, left alone: /m);
  assert.match(told.stdout, /^1 key not of our making: left alone, and no fault\.$/m);
  assert.equal(told.code, 0, told.stdout);
  assert.match((await verb('sweep --dry-run', settings)).stdout, /^Notes\\u\{1b\}\[2J\.txt .*no: left alone$/m);
  assert.equal(await all.stop(), 0);
});

test('an original that is lost is told with what its owner has to do, and no replay is advised', async (t) => {
  const { verb, upload, pool, all } = await live(t);
  const { id } = await upload(corrupt, 'failed');
  await pool.query(`update jobs set error_code = 'staging_lost' where attachment_id = $1`, [id]);
  const { stdout } = await verb(`job ${id}`);
  assert.match(stdout, /^The owner has to upload the file again: /m);
  assert.doesNotMatch(stdout, /To try it again/);
  assert.equal(await all.stop(), 0);
});

test('an object that no row names is listed by a dry sweep and sent to the clean-ups by a real one', async (t) => {
  const { verb, upload, dataDir, pool, all } = await live(t);
  const { id } = await upload(photograph, 'ready');
  assert.equal(await all.stop(), 0);
  await pool.query('delete from cleanups');
  await pool.query('delete from variants where attachment_id = $1', [id]);
  // Old enough to belong to nobody who still runs.
  const settings = { CLEANUP_GRACE: '6s', LEASE: '6s', RENEW: '1500ms', LEASE_RESERVE: '1s', RENDER_TIMEOUT: '5s' };
  const dry = await until('they are old enough', async () => {
    const said = await verb('sweep --dry-run --json', settings);
    const report = parsed<{ found: { published: number }; scheduled: number }>(said);
    return report.found.published === 3 && report;
  });
  assert.equal(dry.scheduled, 0);
  assert.equal((await pool.query('select 1 from cleanups')).rowCount, 0);
  const swept = await verb('sweep', settings);
  assert.equal(swept.code, 0);
  assert.match(swept.stdout, /^3 sent to the clean-ups: /m);
  assert.equal((await pool.query('select 1 from cleanups')).rowCount, 3);
  assert.ok((await readdir(path.join(dataDir, 'blobs'), { recursive: true })).some((name) => name.includes('crop')));
});

test('status tells parts, versions, queue and limits; a part that is down ends it with 1', async (t) => {
  const { verb, dataDir } = await prepare(t);
  const shown = await verb('status');
  assert.equal(shown.code, 0, shown.stderr);
  for (const line of [
    /^database +ok {2}postgres: {2}schema \d{4}_\w+$/m,
    /^storage +ok {2}file:$/m,
    /^waiting +0 of at most 10000/m,
  ])
    assert.match(shown.stdout, line);
  const json = parsed<{ components: Record<string, { state: string }>; pipeline: { recipes: number[] } }>(
    await verb('status --json'),
  );
  assert.deepEqual(Object.keys(json.components), ['database', 'storage', 'broker']);
  assert.deepEqual(json.pipeline.recipes, [1, 2]);
  const away = await verb('status', { BROKER_URL: 'nats://me:geheim@127.0.0.1:1', BLOBS_URL: `file://${dataDir}/x` });
  assert.equal(away.code, 1);
  assert.match(away.stdout, /^broker +down {2}nats:/m);
  assert.doesNotMatch(away.stdout + away.stderr, /geheim/);
});

test("an operator's account is made once, gets a new password on request, and never takes over that of a user", async (t) => {
  const { verb, user, all, handle } = await live(t);
  const logIn = async (account: { handle: string; password: string }) => {
    const answer = await user.json('/v1/sessions', 'POST', account);
    return { status: answer.status, ...((await answer.json()) as { token?: string }) };
  };
  const first = parsed<{ handle: string; password: string }>(await verb('operator grace --json'));
  const session = await logIn(first);
  const queue = () => user.ask('/v1/admin/queue', { headers: { authorization: `Bearer ${session.token}` } });
  assert.equal((await queue()).status, 200);
  const again = await verb('operator grace');
  assert.equal(again.code, 1);
  assert.match(again.stderr, /^skrepka: The operator "grace" exists: .*--reset\.\n$/);
  const reset = await verb('operator grace --reset');
  const password = /^ {2}password {2}(\S+)$/m.exec(reset.stdout)?.[1] ?? '';
  assert.equal((await queue()).status, 401);
  assert.equal((await logIn(first)).status, 401);
  assert.equal((await logIn({ handle: 'grace', password })).status, 201);
  const users = await verb(`operator ${handle} --reset`);
  assert.equal(users.code, 1);
  assert.match(users.stderr, /^skrepka: The handle "\w+" is that of a user, .*\.\n$/);
  assert.match((await verb('operator nobody --reset')).stderr, /^skrepka: There is no operator "nobody": .*\.\n$/);
  assert.equal(await all.stop(), 0);
});

test('a database without the schema of this build is refused with what to do', async (t) => {
  const { verb } = await prepare(t, { empty: true });
  const { code, stdout, stderr } = await verb('jobs');
  assert.deepEqual([code, stdout], [1, '']);
  assert.match(stderr, /^skrepka: The database cannot be used by this build: its schema lacks .* migrate.*\.\n$/);
});

test('what users wrote cannot repaint the terminal of an operator', async (t) => {
  const { verb, upload, pool, all } = await live(t);
  const { id } = await upload(corrupt, 'failed');
  await pool.query(`update jobs set error_detail = E'\\x1b[2Jgone\\r\\nstate  succeeded' where attachment_id = $1`, [
    id,
  ]);
  const { stdout } = await verb(`job ${id}`);
  assert.match(stdout, /^detail +\[2Jgone {2}state {2}succeeded$/m);
  assert.equal(await all.stop(), 0);
});

test('pages go on where the one before ended, and a cursor of another make is refused', async (t) => {
  const { verb, upload, all } = await live(t);
  for (let at = 0; at < 2; at += 1) await upload(photograph, 'ready');
  const first = await verb('jobs --limit 1');
  const cursor = /^More: add --cursor (\S+)$/m.exec(first.stdout)?.[1] ?? assert.fail(first.stdout);
  const second = parsed<{ items: ShownJob[]; next_cursor: string | null }>(
    await verb(`jobs --limit 1 --cursor ${cursor} --json`),
  );
  assert.equal(second.next_cursor, null);
  assert.ok(!first.stdout.includes(second.items[0]?.id ?? ''));
  const wrong = await verb('jobs --cursor x');
  assert.match(wrong.stderr, /^skrepka: The cursor is not one that "jobs" has printed: .*\.\n$/);
  assert.equal(await all.stop(), 0);
});
