/**
 * Strays: objects that no row names, no running attempt may still publish and no clean-up waits for. One search for the janitor,
 * which makes it from time to time, and for operators, who may ask for it.
 *
 * Nothing is deleted here. A stray goes to the clean-ups, and the pass that deletes it looks its key up once more.
 */
import { isId } from '../ids.ts';
import type { BlobEntry, Blobs, Clock } from './ports.ts';
import type { Store } from './store.ts';

export interface StraysSettings {
  /** Age below which an object under `attachments/` is left alone. */
  readonly graceMs: number;
  /** Age below which an object under `staging/` is left alone: its upload has no row while it is on its way. */
  readonly orphanMs: number;
}

export const places = ['staging', 'published'] as const;
export type Place = (typeof places)[number];

export interface Stray extends BlobEntry {
  /** Whether the key is one that we make. Any other is told and left alone: somebody else may need it. */
  readonly ours: boolean;
}

export interface StrayPage {
  /** Objects of the page, strays or not. */
  readonly listed: number;
  readonly strays: readonly Stray[];
  /** Where the next page begins; null at the end. */
  readonly next: string | null;
}

export interface Strays {
  /** One page of a place: what of it strays. Whoever searches keeps the place where to go on, and never more than a page in memory. Rejects `BlobError`, `StoreError`. */
  page(place: Place, after: string | null): Promise<StrayPage>;
  /** Sends those that are ours to the clean-ups, to be deleted twice: a delayed PUT may land late. Answers how many. */
  schedule(strays: readonly Stray[]): Promise<number>;
}

const listMax = 500;
const prefixes: Readonly<Record<Place, string>> = { staging: 'staging/', published: 'attachments/' };

export function createStrays(
  { store, blobs, clock }: { store: Store; blobs: Blobs; clock: Clock },
  settings: StraysSettings,
): Strays {
  const ages: Readonly<Record<Place, number>> = { staging: settings.orphanMs, published: settings.graceMs };

  async function page(place: Place, after: string | null): Promise<StrayPage> {
    const { objects, next } = await blobs.list(prefixes[place], { after: after ?? undefined, limit: listMax });
    const before = clock.wallMs() - ages[place];
    const old = objects.filter((object) => object.modifiedAt.getTime() < before);
    return { listed: objects.length, strays: await unnamed(old), next };
  }

  /** In this order: what ceases to be named between the two questions has its clean-up by the second. */
  async function unnamed(objects: readonly BlobEntry[]): Promise<readonly Stray[]> {
    if (objects.length === 0) return [];
    const named = await store.namedAmong(objects.map(({ key }) => key));
    const rest = objects.filter(({ key }) => !named.has(key));
    if (rest.length === 0) return [];
    const awaited = await store.awaitingCleanup(rest.map(({ key }) => key));
    return rest.filter(({ key }) => !awaited.has(key)).map((object) => ({ ...object, ours: isOurs(object.key) }));
  }

  async function schedule(strays: readonly Stray[]): Promise<number> {
    const keys = strays.filter(({ ours }) => ours).map(({ key }) => key);
    if (keys.length > 0) await store.addCleanups(keys, { afterMs: 0, passes: 1, reason: 'stray' });
    return keys.length;
  }

  return { page, schedule };
}

/** `staging/{attachment}` or `attachments/{attachment}/v{version}.{fence}-{attempt}/{name}`. */
function isOurs(key: string): boolean {
  const [root, id, attempt, name, ...more] = key.split('/');
  if (!isId(id) || more.length > 0) return false;
  if (root === 'staging') return attempt === undefined;
  const attemptId = /^v[1-9]\d*\.[1-9]\d*-(.+)$/.exec(attempt ?? '')?.[1];
  return root === 'attachments' && isId(attemptId) && /^[a-z0-9][a-z0-9.-]*$/.test(name ?? '');
}
