/** What a folder of objects is compared with: which database this is, and whether it misses anything. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { readInstallation } from '../../src/postgres/installation.ts';
import { migrate } from '../../src/postgres/migrate.ts';
import { freshDatabase } from '../support/postgres.ts';
import { startStore } from '../support/store.ts';

describe('an installation', () => {
  it('has an identity that no other has, for ever', async (t) => {
    const [one, other] = await Promise.all([1, 2].map(() => freshDatabase(t, { empty: true })));
    assert.ok(one && other);
    for (const { url } of [one, other]) await migrate(url);
    const { id } = await readInstallation(one.pool);
    assert.match(id, /^[0-9a-f]{8}-[0-9a-f-]{27}$/);
    assert.notEqual(id, (await readInstallation(other.pool)).id);
    await migrate(one.url);
    assert.equal((await readInstallation(one.pool)).id, id);
    await assert.rejects(one.pool.query('insert into installation default values'), /installation_pkey/);
  });

  it('misses objects as soon as a row names one, and until the last such row is deleted', async (t) => {
    const { pool, store, owner, accept, ready } = await startStore(t);
    const misses = async () => (await readInstallation(pool)).namesObjects;
    assert.equal(await misses(), false);
    const waiting = await accept();
    assert.equal(await misses(), true);
    const shown = await ready();
    assert.equal(await store.deleteAttachment(owner, waiting.id, { graceMs: 0 }), true);
    assert.equal(await misses(), true);
    assert.equal(await store.deleteAttachment(owner, shown.id, { graceMs: 0 }), true);
    assert.equal(await misses(), false);
  });
});
