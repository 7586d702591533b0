/** Batches: calls that come at once share one piece of work, and none of them has to suffer for another. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inBatches } from '../src/batches.ts';
import { until } from './support/until.ts';

/** Work that is told when to end, and what it was given. */
function createWork(settings: Partial<Parameters<typeof inBatches>[1]> = {}) {
  const begun: { items: readonly string[]; end: PromiseWithResolvers<void> }[] = [];
  const ask = inBatches(
    async (items: readonly string[]) => {
      const end = Promise.withResolvers<void>();
      begun.push({ items, end });
      await end.promise;
      return items.map((item) => item.toUpperCase());
    },
    { most: 3, patienceMs: 60_000, ...settings },
  );
  const batch = async (at: number) => {
    await until(`batch ${at} has begun`, () => begun.length > at, { everyMs: 1 });
    return begun[at] ?? assert.fail();
  };
  return { ask, batch, begun };
}

describe('calls', () => {
  it('of one turn go together, those that come meanwhile share the next, and each has its own answer', async () => {
    const { ask, batch, begun } = createWork();
    const [a, b] = [ask('a'), ask('b')];
    const first = await batch(0);
    const [c, d] = [ask('c'), ask('d')];
    assert.deepEqual(first.items, ['a', 'b']);
    first.end.resolve();
    assert.deepEqual(await Promise.all([a, b]), ['A', 'B']);
    const second = await batch(1);
    assert.deepEqual(second.items, ['c', 'd']);
    second.end.resolve();
    assert.deepEqual(await Promise.all([c, d]), ['C', 'D']);
    assert.equal(begun.length, 2);
  });

  it('go in the order in which they came, never more than the most at once', async () => {
    const { ask, batch } = createWork();
    const answers = Promise.all(['a', 'b', 'c', 'd', 'e'].map(ask));
    for (const [at, items] of [
      ['a', 'b', 'c'],
      ['d', 'e'],
    ].entries()) {
      const one = await batch(at);
      assert.deepEqual(one.items, items);
      one.end.resolve();
    }
    assert.deepEqual(await answers, ['A', 'B', 'C', 'D', 'E']);
  });

  it('that come after a silence begin a batch again', async () => {
    const { ask, batch } = createWork();
    for (const at of [0, 1]) {
      const answer = ask('a');
      (await batch(at)).end.resolve();
      assert.equal(await answer, 'A');
    }
  });

  it('do not wait for a batch that is stuck', async () => {
    const { ask, batch } = createWork({ patienceMs: 20 });
    const stuck = ask('stuck');
    await batch(0);
    const later = ask('later');
    (await batch(1)).end.resolve();
    assert.equal(await later, 'LATER');
    (await batch(0)).end.resolve();
    assert.equal(await stuck, 'STUCK');
  });
});

describe('a fault', () => {
  it('goes to every call of its batch, and to no other', async () => {
    const { ask, batch } = createWork({ most: 2 });
    const calls = Promise.allSettled(['a', 'b', 'c'].map(ask));
    const lost = new Error('the answer never came');
    (await batch(0)).end.reject(lost);
    (await batch(1)).end.resolve();
    const [a, b, c] = await calls;
    assert.ok(a?.status === 'rejected' && a.reason === lost);
    assert.ok(b?.status === 'rejected' && b.reason === lost);
    assert.deepEqual(c, { status: 'fulfilled', value: 'C' });
  });

  it('of one call is that call’s alone', async () => {
    const { ask, batch, begun } = createWork({ isOfOne: (error) => (error as Error).message === 'broken' });
    const calls = Promise.allSettled([ask('a'), ask('b')]);
    (await batch(0)).end.reject(new Error('broken'));
    await batch(2);
    for (const one of begun.slice(1)) {
      if (one.items.includes('a')) one.end.reject(new Error('broken'));
      else one.end.resolve();
    }
    const [a, b] = await calls;
    assert.equal(a?.status === 'rejected' && (a.reason as Error).message, 'broken');
    assert.deepEqual(b, { status: 'fulfilled', value: 'B' });
  });

  it('is an answer that is missing', async () => {
    const ask = inBatches(async (items: readonly string[]) => items.slice(1), { most: 3 });
    for (const call of [ask('a'), ask('b')]) await assert.rejects(call, /Expected 2 answers for a batch, received 1/);
  });
});
