/** The audit: what rows say must be in the storage, page by page. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newId } from '../../src/ids.ts';
import type { Audited } from '../../src/pipeline/registry.ts';
import type { Pool } from '../../src/postgres/pool.ts';
import { resultOf, settle, startStore } from '../support/store.ts';

type Fixture = Awaited<ReturnType<typeof startStore>>;

async function auditAll(s: Fixture, limit: number): Promise<Audited[]> {
  const all: Audited[] = [];
  for (;;) {
    const page = await s.store.audit({ after: all.at(-1)?.id ?? null, limit });
    assert.ok(page.length <= limit);
    all.push(...page);
    if (page.length === 0) return all;
  }
}

describe('the audit', () => {
  it('tells of a ready attachment its original and its variants, and no staging', async (t) => {
    const s = await startStore(t);
    const { id, upload, result } = await s.ready();
    const variants = result.variants.map(({ name, key, size, sha256 }) => ({ name, key, size, sha256 }));
    const expected = {
      id,
      ownerId: s.owner,
      kind: 'image',
      state: 'ready',
      version: 1,
      size: upload.size,
      sha256: upload.sha256,
      stagingKey: null,
      originalKey: result.originalKey,
      variants,
    };
    assert.deepEqual(await s.store.audited(id), expected);
    assert.deepEqual(await s.store.audit({ after: null, limit: 10 }), [expected]);
  });

  it('tells of the others their staging until it is given up', async (t) => {
    const s = await startStore(t);
    const [queued, running, failed, retired] = [await s.accept(), await s.accept(), await s.failed(), await s.failed()];
    await s.claimed(running.jobId);
    await s.pool.query('update attachments set staging_gone_at = now() where id = $1', [retired.id]);
    const all = await s.store.audit({ after: null, limit: 10 });
    assert.deepEqual(
      all.map(({ id, state, stagingKey, originalKey, variants }) => [
        id,
        state,
        stagingKey,
        originalKey,
        variants.length,
      ]),
      [
        [queued.id, 'queued', queued.upload.stagingKey, null, 0],
        [running.id, 'processing', running.upload.stagingKey, null, 0],
        [failed.id, 'failed', failed.upload.stagingKey, null, 0],
        [retired.id, 'failed', null, null, 0],
      ],
    );
  });

  it('tells of a file only its original, and of a newer version only its own set', async (t) => {
    const s = await startStore(t);
    const file = await s.accept({ kind: 'file', contentType: 'application/pdf' });
    const { attempt } = await s.claimed(file.jobId);
    await settle(s.store, attempt, { ...resultOf(attempt), variants: [] });
    const { id, result: old } = await s.ready();
    const newer = await s.claimed(await s.addJob(id, 2));
    const result = resultOf(newer.attempt, { withOriginal: false });
    await settle(s.store, newer.attempt, result);
    assert.deepEqual((await s.store.audited(file.id))?.variants, []);
    const audited = await s.store.audited(id);
    assert.deepEqual([audited?.version, audited?.originalKey], [2, old.originalKey]);
    assert.deepEqual(
      audited?.variants.map((one) => one.key),
      result.variants.map((one) => one.key),
    );
  });

  it('passes over what is deleted, unknown or no id', async (t) => {
    const s = await startStore(t);
    const { id } = await s.ready();
    await s.store.deleteAttachment(s.owner, id, { graceMs: 1 });
    assert.equal(await s.store.audited(id), null);
    assert.equal(await s.store.audited(newId()), null);
    assert.equal(await s.store.audited('x'), null);
    assert.deepEqual(await s.store.audit({ after: null, limit: 10 }), []);
  });

  it('walks 10,000 attachments once each, in order, by index at any depth', async (t) => {
    const s = await startStore(t, { poolMax: 1 });
    // Of 1,000 users: with few of them a scan by owner that skips from one to the next is as cheap, and as right.
    await s.pool.query(
      `insert into users (id, handle, password_hash, role)
       select md5(n::text)::uuid, 'owner-' || n, '', 'user'
       from generate_series(0, 999) n`,
    );
    // The same ids each time, the greatest of them not deleted: behind a deleted one the planner expects rows at the end, and sorts them.
    await s.pool.query(
      `with uploads as (
         insert into attachments (id, owner_id, state, kind, file_name, content_type, size, sha256, staging_key,
           pipeline_version, original_key, deleted_at)
         select md5('upload ' || n)::uuid, md5((n % 1000)::text)::uuid, 'ready', 'image', 'cat.jpg', 'image/jpeg', 1, repeat('0', 64), 'staging/' || n,
           1, 'original/' || n, case when n % 10 = 0 then now() end
         from generate_series(1, 10000) n
         returning id
       )
       insert into variants (attachment_id, name, pipeline_version, content_type, width, height, size, sha256, key)
       select id, 'crop', 1, 'image/jpeg', 1, 1, 1, repeat('0', 64), id || '/crop.jpg'
       from uploads`,
    );
    await s.pool.query('analyze');
    const statements = await recorded(s.pool);
    const all = await auditAll(s, 500);
    const ids = all.map(({ id }) => id);
    assert.equal(new Set(ids).size, 9_000);
    assert.deepEqual(ids, [...ids].sort());
    assert.ok(all.every(({ id, variants }) => variants.length === 1 && variants[0]?.key === `${id}/crop.jpg`));
    // 9,000 rows in pages of 500, and the empty one that ends them. The first, one in the middle and the last are explained.
    assert.equal(statements.length, 19);
    for (const { text, values } of [0, 9, 18].map((page) => statements[page] ?? assert.fail())) {
      const plan = await s.pool.query(`explain ${text}`, [...values]);
      const lines = JSON.stringify(plan.rows);
      assert.match(lines, /Index Scan using attachments_pkey/);
      assert.doesNotMatch(lines, /Seq Scan/);
    }
  });
});

/** What is sent over the one connection of a pool from now on. */
async function recorded(pool: Pool): Promise<{ text: string; values: readonly unknown[] }[]> {
  const sent: { text: string; values: readonly unknown[] }[] = [];
  const client = await pool.connect();
  const query = client.query.bind(client) as (...args: unknown[]) => unknown;
  Object.assign(client, {
    query: (statement: string | { text: string; values?: unknown[] }, ...rest: unknown[]) => {
      if (typeof statement === 'object') sent.push({ values: [], ...statement });
      // The pool's own queries are plain and bring a callback.
      return query(statement, ...rest);
    },
  });
  client.release();
  return sent;
}
