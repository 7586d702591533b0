/** What several processes let in together, each by a reading of its own: more than the limit, and never more than computed. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SkrepkaError } from '../../src/errors.ts';
import { reading } from '../../src/pipeline/admission.ts';
import { createPipeline } from '../support/pipeline.ts';

type Pipeline = Awaited<ReturnType<typeof createPipeline>>;
type Send = Pipeline['upload'];

const processes = 4;
const limits = { backlogMax: 90, uploadsMax: 6 };
/** The proof is in docs/operations.md, "Admission". */
const bound = limits.backlogMax + (processes - 1) * (reading.admissionsMax + limits.uploadsMax);

async function unfinished({ pool }: Pipeline): Promise<number> {
  const { rows } = await pool.query(
    `select count(*)::int as n from jobs where state in ('queued', 'processing') and origin = 'upload'`,
  );
  return rows[0].n;
}

/** What is committed while a reading is on its way may count twice until the next: then fewer are let in, by those at most. */
const filled = limits.backlogMax - limits.uploadsMax;

/** Uploads with as many at once as one process receives, until it is told that the service is full. */
async function fill(send: Send): Promise<void> {
  const lane = async () => {
    for (;;) {
      const refused = await send('IMG 1').then(
        () => null,
        (error: unknown) => error,
      );
      if (refused === null) continue;
      assert.ok(refused instanceof SkrepkaError && refused.code === 'overloaded', String(refused));
      return;
    }
  };
  await Promise.all(Array.from({ length: limits.uploadsMax }, lane));
}

test('processes whose readings are as old as can be let in more than the limit, up to the bound and not beyond', async (t) => {
  const p = await createPipeline(t, limits);
  // Time stands still: no reading ever ends by its age, only by what was let in.
  const clock = { ...p.clock, monotonicMs: () => 0 };
  const senders = Array.from({ length: processes }, () => p.uploadElsewhere(clock));
  for (const send of senders) await send('IMG 1');
  for (const send of senders) await fill(send);
  const found = await unfinished(p);
  assert.ok(found <= bound, `${found} unfinished uploads, at most ${bound} were expected`);
  const nearly = limits.backlogMax + (processes - 1) * (reading.admissionsMax - 4);
  assert.ok(found >= nearly, `${found} unfinished uploads: the scene is not the worst, which has ${nearly} and more`);
});

test('processes that are flooded at the same time stay within the bound, and the backlog is filled', async (t) => {
  const p = await createPipeline(t, limits);
  await Promise.all(Array.from({ length: processes }, () => fill(p.uploadElsewhere())));
  const found = await unfinished(p);
  assert.ok(found <= bound, `${found} unfinished uploads, at most ${bound} were expected`);
  assert.ok(found >= filled, `${found} unfinished uploads, at least ${filled} were expected`);
});

test('one process alone never passes the limit', async (t) => {
  const p = await createPipeline(t, limits);
  await fill(p.upload);
  const found = await unfinished(p);
  assert.ok(found <= limits.backlogMax && found >= filled, `${found} unfinished uploads`);
});
