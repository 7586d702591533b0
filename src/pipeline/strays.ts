/**
 * Strays: objects that no row names, no running attempt may still publish and no clean-up waits for. One search for the janitor,
 * which makes it from time to time, and for operators, who may ask for it.
 *
 * Nothing is deleted here. A stray goes to the clean-ups, and the pass that deletes it looks its key up once more. Two kinds
 * are kept from that haste. A key that we never make may be somebody else's: it is told and left alone. A published object
 * whose attachment has no row at all, not even a tombstone, means that database and objects do not belong together: a
 * database of an earlier time, or the wrong one. The janitor leaves those alone, and operators have a day to change their mind.
 * What lies in neither folder of ours is told to operators alone: it is nothing that the janitor could do anything about.
 */
import { isId } from '../ids.ts';
import { type BlobEntry, BlobError, type Blobs, type Clock } from './ports.ts';
import type { Store } from './store.ts';

export interface StraysSettings {
  /** Age below which an object under `attachments/`, or in no folder of ours, is left alone. */
  readonly graceMs: number;
  /** Age below which an object under `staging/` is left alone: its upload has no row while it is on its way. */
  readonly orphanMs: number;
}

export const places = ['staging', 'published', 'elsewhere'] as const;
export type Place = (typeof places)[number];

export interface Stray extends BlobEntry {
  readonly place: Place;
  /** Whether the key is one that we make. */
  readonly ours: boolean;
  /** Whether its attachment has a row. In staging an upload that was broken off has none; a published object always has. */
  readonly known: boolean;
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
  /**
   * Sends strays to the clean-ups, to be deleted twice: a delayed PUT may land late. Answers how many. Those of unknown
   * attachments go only with `unknown`, and are deleted after `orphanMs` instead of at once.
   */
  schedule(strays: readonly Stray[], options: { unknown: boolean }): Promise<number>;
}

const listMax = 500;
const nothing = { objects: [], next: null };
const prefixes: Readonly<Record<Place, string>> = { staging: 'staging/', published: 'attachments/', elsewhere: '' };
const folders = [prefixes.published, prefixes.staging];

export function createStrays(
  { store, blobs, clock }: { store: Store; blobs: Blobs; clock: Clock },
  settings: StraysSettings,
): Strays {
  const { orphanMs, graceMs } = settings;
  const ages: Readonly<Record<Place, number>> = { staging: orphanMs, published: graceMs, elsewhere: graceMs };

  async function page(place: Place, after: string | null): Promise<StrayPage> {
    const listed = await blobs.list(prefixes[place], { after: after ?? undefined, limit: listMax }).catch((error) => {
      // A folder that is closed to us among those that are not ours: what we have is known by then.
      if (place === 'elsewhere' && error instanceof BlobError && error.fault === 'broken') return nothing;
      throw error;
    });
    const { objects, next } = place === 'elsewhere' ? upToFolders(listed) : listed;
    const before = clock.wallMs() - ages[place];
    const old = objects.filter((object) => object.modifiedAt.getTime() < before);
    return { listed: objects.length, strays: await straysAmong(place, old), next };
  }

  async function straysAmong(place: Place, objects: readonly BlobEntry[]): Promise<readonly Stray[]> {
    // No row names a key outside of our folders.
    if (place === 'elsewhere') return objects.map((object) => ({ ...object, place, ours: false, known: false }));
    const rest = await unnamed(objects);
    if (rest.length === 0) return [];
    const known = await store.knownAttachments(rest.map(({ key }) => attachmentOf(key)));
    return rest.map((object) => ({
      ...object,
      place,
      ours: isOurs(object.key),
      known: known.has(attachmentOf(object.key)),
    }));
  }

  /** In this order: what ceases to be named between the two questions has its clean-up by the second. */
  async function unnamed(objects: readonly BlobEntry[]): Promise<readonly BlobEntry[]> {
    if (objects.length === 0) return [];
    const named = await store.namedAmong(objects.map(({ key }) => key));
    const rest = objects.filter(({ key }) => !named.has(key));
    if (rest.length === 0) return [];
    const awaited = await store.awaitingCleanup(rest.map(({ key }) => key));
    return rest.filter(({ key }) => !awaited.has(key));
  }

  async function schedule(strays: readonly Stray[], options: { unknown: boolean }): Promise<number> {
    const ours = strays.filter((stray) => stray.ours);
    const now = ours.filter((stray) => !isOfUnknown(stray));
    const later = options.unknown ? ours.filter(isOfUnknown) : [];
    await send(now, 0);
    await send(later, settings.orphanMs);
    return now.length + later.length;
  }

  async function send(strays: readonly Stray[], afterMs: number) {
    if (strays.length === 0) return;
    const keys = strays.map(({ key }) => key);
    await store.addCleanups(keys, { afterMs, passes: 1, reason: 'stray' });
  }

  return { page, schedule };
}

/**
 * Of a page of everything, what comes before a folder of ours; it goes on behind that folder, whose objects may be millions. `0` is the
 * character after `/`.
 */
function upToFolders({ objects, next }: { objects: readonly BlobEntry[]; next: string | null }) {
  const at = objects.findIndex(({ key }) => folders.some((folder) => key.startsWith(folder)));
  const folder = folders.find((one) => objects[at]?.key.startsWith(one));
  return folder === undefined ? { objects, next } : { objects: objects.slice(0, at), next: folder.replace(/\/$/, '0') };
}

/** True for what can only be explained by a database that is not the one of these objects, or of another time. */
export function isOfUnknown({ place, ours, known }: Stray): boolean {
  return place === 'published' && ours && !known;
}

/** The second segment: an id in every key of ours. */
function attachmentOf(key: string): string {
  return key.split('/')[1] ?? '';
}

/** `staging/{attachment}` or `attachments/{attachment}/v{version}.{fence}-{attempt}/{name}`. */
function isOurs(key: string): boolean {
  const [root, id, attempt, name, ...more] = key.split('/');
  if (!isId(id) || more.length > 0) return false;
  if (root === 'staging') return attempt === undefined;
  const attemptId = /^v[1-9]\d*\.[1-9]\d*-(.+)$/.exec(attempt ?? '')?.[1];
  return root === 'attachments' && isId(attemptId) && /^[a-z0-9][a-z0-9.-]*$/.test(name ?? '');
}
