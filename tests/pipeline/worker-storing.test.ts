/** Step 5 beside step 4: what is stored while other work of the same attempt goes on, and what an attempt that fails leaves undone. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { BlobError } from '../../src/pipeline/ports.ts';
import { failing, type Pipeline, waiting } from '../support/attempts.ts';
import { createPipeline } from '../support/pipeline.ts';
import { createHold, takes } from '../support/ports-fake.ts';
import { until } from '../support/until.ts';

/** Leases that nobody renews in the time of a test. */
const longLease = { leaseMs: 60_000, renewMs: 15_000, visibilityMs: 90_000 };

/** The next call of the verb takes long. What is answered tells, once it is over, how many failures were recorded before. */
function slowly(p: Pipeline, verb: 'put' | 'copy'): number[] {
  const failed: number[] = [];
  p.blobs.plan(verb, {
    first: async () => {
      await takes(300);
      failed.push(p.store.calls('fail'));
    },
  });
  return failed;
}

describe('the original', () => {
  test('is stored while the picture is rendered', async (t) => {
    const { painter, go } = waiting();
    const p = await createPipeline(t, longLease, painter);
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    const { objects } = await until('it lies beside the staged one', async () => {
      const page = await p.blobs.port.list(`attachments/${attachment.id}/`);
      return page.objects.length === 1 ? page : null;
    });
    assert.match(objects[0]?.key ?? '', /\/original\.jpg$/);
    assert.equal((await p.untilState(attachment.id, 'processing')).originalKey, null);
    go();
    assert.equal((await p.untilState(attachment.id, 'ready')).originalKey, objects[0]?.key);
  });

  test('whose copy has other bytes is found by reading back: retried, then ready', async (t) => {
    const p = await createPipeline(t);
    const { attachment } = await p.upload('IMG 1');
    async function* torn() {
      yield Buffer.from('torn');
    }
    p.blobs.plan('copy', {
      first: async ([, to]) => {
        const spoil = async ([opened]: readonly unknown[]) => {
          if (opened === to) await p.blobs.port.put(to as string, torn());
        };
        p.blobs.plan('open', { first: spoil });
      },
    });
    p.startRelay();
    p.startWorker();
    const ready = await p.untilState(attachment.id, 'ready');
    assert.equal((await p.jobOf(attachment.id)).failures, 1);
    assert.equal((await p.blobs.port.head(ready.originalKey ?? ''))?.size, 5);
  });

  test('of a picture that cannot be rendered is waited for before the job fails, and goes to the clean-ups', async (t) => {
    const p = await createPipeline(t, longLease, failing('corrupt_image'));
    const failed = slowly(p, 'copy');
    p.startRelay();
    p.startWorker();
    const { attachment } = await p.upload('IMG 1');
    await p.untilState(attachment.id, 'failed');
    assert.deepEqual(failed, [0]);
    assert.equal((await p.jobOf(attachment.id)).error_code, 'corrupt_image');
    p.startJanitor();
    await until(
      'no object is left',
      async () => (await p.blobs.port.list(`attachments/${attachment.id}/`)).objects.length === 0,
    );
  });
});

describe('variants', () => {
  test('are stored two at once, and no third before one of them is whole', async (t) => {
    const p = await createPipeline(t, longLease);
    const before = p.blobs.calls('put') + 1;
    const [one, other] = [createHold(), createHold()];
    const { attachment } = await p.upload('IMG 1');
    p.blobs.plan('put', { first: one.wait }, { first: other.wait });
    p.startRelay();
    p.startWorker();
    await Promise.all([one.reached, other.reached]);
    assert.equal(p.blobs.calls('put'), before + 2);
    one.pass();
    await until('the third is put', () => p.blobs.calls('put') === before + 3);
    other.pass();
    assert.equal((await p.untilState(attachment.id, 'ready')).variants.length, 3);
  });

  test('of which one cannot be put: its sibling is waited for, none is begun any more, and then the job is retried', async (t) => {
    const p = await createPipeline(t, { ...longLease, floorMs: 0, baseMs: 1, capMs: 1 });
    const { attachment } = await p.upload('IMG 1');
    const before = p.blobs.calls('put');
    const failed = slowly(p, 'put');
    p.blobs.plan('put', { before: () => new BlobError('broken', 'bad sector') });
    p.startRelay();
    p.startWorker();
    assert.equal((await p.untilState(attachment.id, 'ready')).variants.length, 3);
    assert.deepEqual(failed, [0]);
    const job = await p.jobOf(attachment.id);
    assert.deepEqual([job.attempts, job.failures, p.blobs.calls('put')], [2, 1, before + 5]);
  });
});
