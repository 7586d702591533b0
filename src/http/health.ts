/** How the parts are that an API cannot do without: asked once, however many want to know. */
import { describe } from '../errors.ts';
import type { Blobs, Broker, Log } from '../pipeline/ports.ts';
import type { Store } from '../pipeline/store.ts';

export type ComponentState = 'ok' | 'down' | 'absent';

export interface Components {
  readonly database: ComponentState;
  readonly storage: ComponentState;
  readonly broker: ComponentState;
}

export interface HealthDeps {
  readonly store: Pick<Store, 'health'>;
  readonly blobs: Pick<Blobs, 'health'>;
  /** Null where this process does not talk to one. */
  readonly broker: Pick<Broker, 'health'> | null;
  readonly log: Log;
}

/** Longest wait for one component's answer. */
const healthMs = 1800;

/** Answers a question that asks every component, within 2 s. Whoever asks while it runs gets the same answer. */
export function createHealth(deps: HealthDeps): () => Promise<Components> {
  let running: Promise<Components> | null = null;
  return () => {
    running ??= check(deps).finally(() => {
      running = null;
    });
    return running;
  };
}

async function check({ store, blobs, broker, log }: HealthDeps): Promise<Components> {
  const probe = async (name: string, part: { health(): Promise<void> } | null) => {
    if (!part) return 'absent' as const;
    const overdue = AbortSignal.timeout(healthMs);
    try {
      await Promise.race([part.health(), rejection(overdue)]);
      return 'ok' as const;
    } catch (error) {
      log.warn({ component: name, error: describe(error) }, 'component is down');
      return 'down' as const;
    }
  };
  const [database, storage, queue] = await Promise.all([
    probe('database', store),
    probe('storage', blobs),
    probe('broker', broker),
  ]);
  return { database, storage, broker: queue };
}

function rejection(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
}
