/** Gauges of the whole system, which an API reads when it is scraped: what the store, the broker and the health check say. */
import type { Components } from './http/health.ts';
import type { Broker } from './pipeline/ports.ts';
import type { QueueView } from './pipeline/registry.ts';
import type { Store } from './pipeline/store.ts';
import type { Telemetry } from './telemetry.ts';

export interface SystemParts {
  readonly store: Pick<Store, 'queue'>;
  readonly broker: Pick<Broker, 'depth'>;
  readonly health: () => Promise<Components>;
}

/** The limits of admission, told beside what they limit: an alarm needs no copy of the configuration. */
export interface SystemLimits {
  readonly backlogMax: number;
  readonly stagingBytesMax: number;
}

/** Each group is read by itself: a broker that is away hides nothing but its own figures. */
export function tellSystem(telemetry: Pick<Telemetry, 'gauges'>, parts: SystemParts, limits: SystemLimits): void {
  telemetry.gauges(Object.keys(queueGauges), async () => {
    const queue = await parts.store.queue();
    return Object.fromEntries(Object.entries(queueGauges).map(([name, of]) => [name, of(queue)]));
  });
  telemetry.gauges(Object.keys(brokerGauges), async () => {
    const depth = await parts.broker.depth();
    return Object.fromEntries(Object.entries(brokerGauges).map(([name, of]) => [name, of(depth)]));
  });
  telemetry.gauges(Object.keys(limitGauges), async () =>
    Object.fromEntries(Object.entries(limitGauges).map(([name, of]) => [name, of(limits)])),
  );
  telemetry.gauges(Object.keys(healthGauges), async () => {
    const components = await parts.health();
    return Object.fromEntries(Object.entries(healthGauges).map(([name, of]) => [name, of(components)]));
  });
}

type Gauges<From, To = number> = Readonly<Record<string, (from: From) => To>>;

const queueGauges: Gauges<QueueView> = {
  jobs_queued: (queue) => queue.queued,
  jobs_due: (queue) => queue.due,
  jobs_announced: (queue) => queue.announced,
  jobs_processing: (queue) => queue.processing,
  jobs_failed: (queue) => queue.failed,
  jobs_oldest_queued_seconds: (queue) => queue.oldestQueuedSeconds ?? 0,
  jobs_oldest_due_seconds: (queue) => queue.oldestDueSeconds ?? 0,
  staging_bytes: (queue) => queue.stagingBytes,
  staging_oldest_seconds: (queue) => queue.oldestStagingSeconds ?? 0,
  cleanups_waiting: (queue) => queue.cleanups,
};

const brokerGauges: Gauges<{ waiting: number; inFlight: number }> = {
  broker_waiting: ({ waiting }) => waiting,
  broker_in_flight: ({ inFlight }) => inFlight,
};

const limitGauges: Gauges<SystemLimits> = {
  backlog_limit: ({ backlogMax }) => backlogMax,
  staging_limit_bytes: ({ stagingBytesMax }) => stagingBytesMax,
};

const healthGauges: Gauges<Components, Readonly<Record<string, number>>> = {
  component_up: (components) =>
    Object.fromEntries(
      Object.entries(components)
        .filter(([, state]) => state !== 'absent')
        .map(([component, state]) => [component, state === 'ok' ? 1 : 0]),
    ),
};
