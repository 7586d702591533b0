/** More than the service can keep, with roles as real processes: who floods is told to wait, and nobody else pays for it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { register } from '../support/client.ts';
import { openJourney, type User } from '../support/journey.ts';
import { isReady } from '../support/supervised.ts';
import { until } from '../support/until.ts';
import { dial, uploadHead } from '../support/uploads.ts';

const floodSize = 300;
const lanes = 8;

/** Uploads `floodSize` notes, several at once, as a program would that does not listen: it asks again at once. */
function flood(user: User) {
  const accepted: string[] = [];
  const refusals: { code: string; reason?: string; retryAfter: string | null }[] = [];
  let next = 0;
  const one = async (number: number) => {
    const answer = await user.send(Buffer.from(`note ${number}`), 'text/plain');
    const body = (await answer.json()) as { id: string; code: string; reason?: string };
    if (answer.status === 202) return accepted.push(body.id) > 0;
    const { code, reason } = body;
    refusals.push({ code, ...(reason === undefined ? {} : { reason }), retryAfter: answer.headers.get('retry-after') });
    return false;
  };
  const lane = async () => {
    for (let number = next++; number < floodSize; number = next++) {
      await until(`note ${number} is taken`, () => one(number), { deadlineMs: 120_000, everyMs: 100 });
    }
  };
  const over = Promise.all(Array.from({ length: lanes }, lane));
  return { accepted, refusals, over };
}

test('a flood of one user is told when to come back, loses nothing that was taken, and does not keep another one waiting', async (t) => {
  const j = await openJourney(t, {
    ...{ MAX_PENDING_PER_USER: '120', MAX_UPLOADS_PER_USER: '6', RENDER_CONCURRENCY: '2' },
  });
  const api = await j.start(['api', 'relay', 'janitor']);
  const [ada, bob] = [await register(() => api.url), await register(() => api.url)];

  const flooding = flood(ada);
  await until('the flood is as long as it may be', () => flooding.refusals.some(({ reason }) => reason === 'pending'), {
    deadlineMs: 120_000,
  });
  const own = await bob.upload(Buffer.from('a note of my own'), 'text/plain');
  await j.start(['worker']);
  await bob.until(own.id, 'ready');
  await flooding.over;
  for (const id of flooding.accepted) await ada.until(id, 'ready');

  assert.equal(flooding.accepted.length, floodSize);
  assert.equal(await j.count('attachments'), floodSize + 1);
  for (const { code, retryAfter } of flooding.refusals) {
    assert.equal(code, 'too_many_uploads');
    assert.match(retryAfter ?? '', /^[1-9]\d{0,2}$/);
  }
  // Of the flood, more than half came to its end after Bob's single upload, which began in the midst of it.
  const { rows } = await j.pool.query(
    `select count(*) filter (where job.finished_at > bob.finished_at)::int as after,
       count(*) filter (where job.finished_at between bob.created_at and bob.finished_at)::int as between
     from jobs job, jobs bob
     where bob.attachment_id = $1 and job.attachment_id <> $1`,
    [own.id],
  );
  assert.ok(rows[0].after > floodSize / 2, `${rows[0].after} of the flood ended later`);
  // Of the 120 that waited before his, those that were announced already: by their age, all would have gone first.
  assert.ok(rows[0].between < 80, `${rows[0].between} of the flood were done while Bob waited`);
});

test('a full backlog is refused before the body, reads go on, and when workers have caught up uploads are taken again', async (t) => {
  const limit = 10;
  const j = await openJourney(t, { MAX_BACKLOG: String(limit), RENDER_CONCURRENCY: '2' });
  const api = await j.start(['api', 'relay', 'janitor']);
  const users = await Promise.all([1, 2, 3].map(() => register(() => api.url)));
  const [ada, bob, carol] = users as [User, User, User];
  const taken: [User, string][] = [];
  for (let number = 0; number < limit; number += 1) {
    const user = users[number % users.length] as User;
    taken.push([user, (await user.upload(Buffer.from(`note ${number}`), 'text/plain')).id]);
  }

  const refused = await carol.send(Buffer.from('one more'), 'text/plain');
  assert.equal(refused.status, 503);
  assert.equal(((await refused.json()) as { code: string }).code, 'overloaded');
  assert.match(refused.headers.get('retry-after') ?? '', /^[1-9]\d{0,2}$/);
  const line = await dial(t, api.url);
  const token = ada.authorization.replace('Bearer ', '');
  await line.write(uploadHead(token, { 'content-length': 1000, expect: '100-continue' }));
  await line.until('"code":"overloaded"');
  await line.untilClosed();
  assert.match(line.received(), /^HTTP\/1\.1 503 /);
  assert.equal(await j.count('attachments'), limit);

  assert.equal((await ada.ask('/v1/attachments')).status, 200);
  assert.equal((await bob.attachment(taken[1]?.[1] ?? '')).state, 'queued');
  const chat = await bob.json('/v1/chats', 'POST', { title: 'While it is full' });
  const { id } = (await chat.json()) as { id: string };
  const message = { attachment_ids: [taken[1]?.[1]] };
  assert.equal((await bob.json(`/v1/chats/${id}/messages`, 'POST', message)).status, 201);
  await until('it is ready', () => isReady(api.url));

  await j.start(['worker']);
  const again = await until(
    'an upload is taken again',
    async () => {
      const answer = await carol.send(Buffer.from('one more'), 'text/plain');
      return answer.status === 202 && ((await answer.json()) as { id: string });
    },
    { deadlineMs: 60_000, everyMs: 100 },
  );
  for (const [user, taking] of [...taken, [carol, again.id] as const]) await user.until(taking, 'ready');
  await j.assertTidy();
});
