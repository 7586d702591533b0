/** The schema: one reviewed file that is what the migrations make, and constraints that refuse impossible rows. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { describe, it } from 'node:test';
import { describeSchema, schemaFile } from '../../scripts/schema.ts';
import { jobReasons } from '../../src/postgres/history.ts';
import { freshDatabase } from '../support/postgres.ts';
import { startStore } from '../support/store.ts';

const refused = (constraint: string) => ({ code: '23514', constraint });

describe('schema.sql', () => {
  it('is what the migrations make', async (t) => {
    const { pool } = await freshDatabase(t);
    assert.equal(await readFile(schemaFile, 'utf8'), await describeSchema(pool), 'run `node scripts/schema.ts`');
  });

  it('makes the same schema again in an empty database', async (t) => {
    const { pool } = await freshDatabase(t, { empty: true });
    const text = await readFile(schemaFile, 'utf8');
    await pool.query(text);
    assert.equal(await describeSchema(pool), text);
  });

  it('shows a change of a column, a constraint, an index and a storage option', async (t) => {
    const { pool } = await freshDatabase(t);
    const before = await describeSchema(pool);
    for (const change of [
      'alter table users alter column role drop not null',
      'alter table jobs drop constraint unfinished_has_a_bell',
      'drop index jobs_ringing',
      'alter table jobs reset (fillfactor)',
      'alter table variants drop constraint variants_attachment_id_fkey',
    ]) {
      const client = await pool.connect();
      try {
        await client.query('begin');
        await client.query(change);
        assert.notEqual(await describeSchema(client), before, change);
        await client.query('rollback');
      } finally {
        client.release();
      }
    }
    assert.equal(await describeSchema(pool), before);
  });
});

describe('constraints of jobs', () => {
  const impossible: [title: string, assignment: string, constraint: string][] = [
    ['an unfinished job without a bell', 'ring_at = null', 'unfinished_has_a_bell'],
    ['a finished job with a bell', `state = 'succeeded', finished_at = now()`, 'unfinished_has_a_bell'],
    [
      'a finished job that was rung',
      `state = 'succeeded', finished_at = now(), ring_at = null, rung_at = now()`,
      'only_a_bell_is_rung',
    ],
    ['a processing job without a lease', `state = 'processing', attempt_id = id`, 'processing_has_a_lease'],
    ['a queued job with a lease', 'lease_until = now()', 'processing_has_a_lease'],
    ['a processing job without an attempt', `state = 'processing', lease_until = now()`, 'processing_has_an_attempt'],
    ['a finished job without its time', `state = 'succeeded', ring_at = null`, 'finished_says_when'],
  ];
  for (const [title, assignment, constraint] of impossible) {
    it(`refuse ${title}`, async (t) => {
      const s = await startStore(t);
      const { jobId } = await s.accept();
      await assert.rejects(s.pool.query(`update jobs set ${assignment} where id = $1`, [jobId]), refused(constraint));
    });
  }

  it('refuse a second job of one attachment and version', async (t) => {
    const s = await startStore(t);
    const { id } = await s.accept();
    await assert.rejects(s.addJob(id, 1), { code: '23505', constraint: 'jobs_attachment_id_version_key' });
  });
});

describe('constraints of attachments', () => {
  const impossible: [title: string, assignment: string, constraint: string][] = [
    ['ready without a version', `state = 'ready'`, 'ready_is_published'],
    ['a version without an original', `state = 'ready', pipeline_version = 1`, 'published_has_original'],
    ['failed without a code', `state = 'failed'`, 'failed_says_why'],
    ['a code without a failure', `error_code = 'internal'`, 'failed_says_why'],
  ];
  for (const [title, assignment, constraint] of impossible) {
    it(`refuse ${title}`, async (t) => {
      const s = await startStore(t);
      const { id } = await s.accept();
      await assert.rejects(
        s.pool.query(`update attachments set ${assignment} where id = $1`, [id]),
        refused(constraint),
      );
    });
  }
});

describe('reasons of the history', () => {
  it('are the same in the constraint and in the table that adds them up', async (t) => {
    const { pool } = await freshDatabase(t);
    const { rows } = await pool.query<{ definition: string }>(
      `select pg_get_constraintdef(oid) as definition from pg_constraint where conname = 'job_events_reason_check'`,
    );
    const listed = [...(rows[0]?.definition ?? '').matchAll(/'(\w+)'/g)].map((match) => match[1]);
    assert.deepEqual(listed.sort(), Object.keys(jobReasons).sort());
  });
});
