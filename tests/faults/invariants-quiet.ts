/** The invariants of the end: nothing is left to do, nothing left over, and every upload came to what its bytes deserve. */
import { isGood, isHurt, type Observed, Violation } from './invariants.ts';
import { pictureOf } from './ports-worker.ts';
import { type AttachmentRow, isUnfinished, type Tables } from './store-tables.ts';

/** `drained`: processes that drained undisturbed, asleep or hurt at no time. */
export function checkQuiet(observed: Observed, drained: ReadonlySet<string>): void {
  const { tables, objects, lost } = observed;
  for (const job of tables.jobs.values()) {
    if (isUnfinished(job)) throw new Violation('I6', `${job.id} is ${job.state} when all is quiet`);
  }
  for (const row of tables.attachments.values()) checkEnd(observed, row);
  checkDrained(tables, drained);
  const left = strayOf(observed);
  if (left !== null) {
    const row = tables.attachments.get(left.split('/')[1] ?? '');
    throw new Violation(row && row.deletedAt !== null ? 'I26' : 'I19', `${left} is left, and no row names it`);
  }
  for (const key of namedKeys(tables)) {
    if (!objects.stored.has(key) && !lost.has(key)) throw new Violation('I19', `${key} is named and not there`);
  }
}

/** Whatever happened on the way: a good upload is ready with the pictures of its version, a bad one failed with its own code. */
function checkEnd(observed: Observed, row: AttachmentRow): void {
  if (row.deletedAt !== null || isHurt(observed, row.id)) return;
  const source = observed.sources.get(row.id) ?? '';
  // Workers that died one after another under it, each by fate: nobody could know that it was not the picture.
  if (row.state === 'failed' && row.errorCode === 'worker_lost') return;
  if (isGood(source) !== (row.state === 'ready'))
    throw new Violation('I18', `${source} came to ${row.state} ${row.errorCode ?? ''}`);
  const deserved = { corrupt: 'corrupt_image', crash: 'render_crashed', killer: 'worker_lost' } as const;
  const kind = /^IMG (corrupt|crash|killer)/.exec(source)?.[1] as keyof typeof deserved | undefined;
  if (kind && row.errorCode !== deserved[kind])
    throw new Violation('I18', `${source} failed with ${row.errorCode}, not ${deserved[kind]}`);
  for (const { name, key } of row.variants) {
    const bytes = observed.objects.stored.get(key)?.bytes ?? [];
    if (
      !Buffer.from(bytes)
        .toString()
        .startsWith(pictureOf(source, name, row.pipelineVersion))
    )
      throw new Violation('I16', `${name} of ${row.id} is not that of its source and version`);
  }
}

/** A drain spends nothing: what it held was finished, or given back by its own word. */
function checkDrained(tables: Tables, drained: ReadonlySet<string>): void {
  for (const [jobId, events] of tables.events) {
    for (const [at, { who, reason, fence }] of events.entries()) {
      if (!drained.has(who) || (reason !== 'claimed' && reason !== 'crashed')) continue;
      const next = events[at + 1];
      if (next?.reason === 'crashed' || next?.reason === 'exhausted')
        throw new Violation('I21', `${who} drained in order, and its attempt ${fence} of ${jobId} was never ended`);
    }
  }
}

function namedKeys(tables: Tables): string[] {
  const living = [...tables.attachments.values()].filter((row) => row.deletedAt === null);
  return living.flatMap((row) => [
    ...row.variants.map(({ key }) => key),
    ...(row.originalKey === null ? [] : [row.originalKey]),
    ...(row.stagingGoneAt === null ? [row.stagingKey] : []),
  ]);
}

/** An object that no row names; null when there is none. */
export function strayOf({ tables, objects }: Pick<Observed, 'tables' | 'objects'>): string | null {
  const named = new Set(namedKeys(tables));
  return [...objects.stored.keys()].find((key) => !named.has(key)) ?? null;
}
