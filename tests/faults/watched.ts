/** A process's own view of store and storage, with the invariants told what it does before it is done. */
import type { Attempt } from '../../src/pipeline/job.ts';
import type { Store } from '../../src/pipeline/store.ts';
import type { Watch } from './invariants-verbs.ts';
import type { Process } from './world.ts';

type Answer = { readonly kind: string; readonly claim?: { readonly attempt: Attempt } };

export function storeWatched(store: Store, process: Process, watch: Watch): Store {
  const isWorker = process.name.startsWith('worker');
  return new Proxy(store, {
    get(target, verb, receiver) {
      const act = Reflect.get(target, verb, receiver) as (...given: unknown[]) => Promise<unknown>;
      if (!told.has(String(verb))) return act;
      return async (...given: unknown[]) => {
        if (verb === 'settle' || verb === 'fail') watch.writes(process, given[0] as Attempt);
        if (verb === 'ringAgain') watch.hastens(process, isWorker ? 'starved' : 'disrupted');
        if (verb === 'markRung') {
          const { jobId, ring } = given[0] as { jobId: string; ring: number };
          watch.marks(process, `${jobId}:${ring}`);
        }
        const answer = await act(...given);
        if (verb === 'claim' || verb === 'readAttempt') {
          const attempt = (answer as Answer).claim?.attempt ?? null;
          const jobId = verb === 'claim' ? (given[0] as { jobId: string }).jobId : (given[0] as string);
          // An attempt that was read back after an unknown outcome is held as well; one that was not found is no refusal.
          if (attempt || verb === 'claim') watch.claimed(process, jobId, attempt);
        }
        return answer;
      };
    },
  });
}

const told: ReadonlySet<string> = new Set([...['settle', 'fail', 'ringAgain', 'markRung', 'claim', 'readAttempt']]);

/** The attempt of which a key is; nothing is told of the staging objects of uploads. */
export function keysWatched(watch: Watch): (process: Process, key: string) => void {
  return (process, key) => {
    const [, attachmentId = '', version = '', fence = '', attemptId = ''] =
      /^attachments\/([^/]+)\/v(\d+)\.(\d+)-([^/]+)\//.exec(key) ?? [];
    const numbers = { version: Number(version), fence: Number(fence) };
    if (attachmentId) watch.writes(process, { attachmentId, ...numbers, attemptId });
  };
}
