/**
 * One attachment under examination: are the objects that its row names there, and whole? What is not is looked at a second time,
 * after its row was read again: the row may have moved on since, and then there is nothing to tell.
 *
 * A lost or damaged variant is mended by making the set anew from the original, so the original is read first. An original
 * has no second copy: what it was is told, and nothing is done.
 */
import { describe } from '../errors.ts';
import type { Finding, FindingKind, Remedy } from './doctor.ts';
import { digest, openBody } from './original.ts';
import { BlobError, type Blobs, type Clock, type Log } from './ports.ts';
import type { Audited } from './registry.ts';
import { type Store, StoreError } from './store.ts';

/** An object that a row names. */
interface Named {
  readonly role: 'original' | 'variant' | 'staging';
  /** What operators read: the name of the variant, or the role. */
  readonly title: string;
  readonly key: string;
  readonly size: number;
  readonly sha256: string;
}

interface Flaw {
  readonly object: Named;
  readonly lost: boolean;
  readonly detail: string;
}

/** Asks again, a few times, while what is asked is away: an examination of hours must not end with one dropped connection. */
export type Patience = <T>(work: () => Promise<T>) => Promise<T>;

const triesMax = 5;
const floorMs = 250;

export function createPatience({ clock, log }: { clock: Clock; log: Log }, signal: AbortSignal): Patience {
  const isAway = (error: unknown) =>
    error instanceof StoreError || (error instanceof BlobError && error.fault === 'unavailable');
  return async (work) => {
    for (let tries = 1; ; tries += 1) {
      try {
        return await work();
      } catch (error) {
        if (!isAway(error) || tries >= triesMax || signal.aborted) throw error;
        log.warn({ error: describe(error) }, 'doctor: a dependency is away, it is asked again');
        await clock.sleep(floorMs * 2 ** tries, signal);
      }
    }
  };
}

export interface ExaminationOptions {
  readonly repair: boolean;
  readonly deep: boolean;
  readonly who: string;
  readonly patiently: Patience;
  readonly tell: (finding: Finding) => void;
}

export interface Examination {
  /** Tells what is wrong with one row and, with `repair`, has it mended. Answers how many objects it names. */
  row(row: Audited): Promise<number>;
}

export function createExamination(
  { store, blobs }: { store: Store; blobs: Blobs },
  { repair, deep, who, patiently, tell }: ExaminationOptions,
  signal: AbortSignal,
): Examination {
  async function row(seen: Audited): Promise<number> {
    const objects = namedBy(seen);
    const suspects = await flawsOf(objects, deep);
    if (suspects.length > 0) await confirm(seen.id, suspects);
    return objects.length;
  }

  async function confirm(id: string, suspects: readonly Flaw[]) {
    const now = await patiently(() => store.audited(id));
    if (now === null) return;
    const keys = new Set(suspects.map(({ object }) => object.key));
    const flaws = await flawsOf(
      namedBy(now).filter(({ key }) => keys.has(key)),
      deep,
    );
    const ofVariants = flaws.filter(({ object }) => object.role === 'variant');
    for (const flaw of flaws) if (!ofVariants.includes(flaw)) tell(asFinding(now, flaw, 'none'));
    if (ofVariants.length === 0) return;
    const remedy = await mend(now, flaws);
    // Null: its set was replaced between two lines of this function.
    if (remedy === null) return;
    const why = remedy === 'none' ? '; its original is not whole either' : '';
    for (const flaw of ofVariants) tell(asFinding(now, { ...flaw, detail: flaw.detail + why }, remedy));
  }

  /** Has the variants made anew, where there is something to make them from: `none` without a whole original. */
  async function mend(row: Audited, flaws: readonly Flaw[]): Promise<Remedy | null> {
    if (flaws.some(({ object }) => object.role === 'original')) return 'none';
    if (!repair) return 'possible';
    const original = namedBy(row).filter(({ role }) => role === 'original');
    const [flaw] = await flawsOf(original, true);
    if (flaw || original.length === 0) {
      if (flaw) tell(asFinding(row, flaw, 'none'));
      return 'none';
    }
    const keys = row.variants.map(({ key }) => key);
    return remedies[await patiently(() => store.rebuild(row.id, { keys, who }))];
  }

  async function flawsOf(objects: readonly Named[], whole: boolean): Promise<Flaw[]> {
    const flaws: Flaw[] = [];
    for (const object of objects) {
      signal.throwIfAborted();
      const flaw = await patiently(() => look(object, whole));
      if (flaw !== null) flaws.push(flaw);
    }
    return flaws;
  }

  /** Null when the object is as the row says: by its size or, `whole`, by its bytes. */
  async function look(object: Named, whole: boolean): Promise<Flaw | null> {
    const lost = { object, lost: true, detail: `no object of ${object.size} bytes` };
    const damaged = (detail: string) => ({ object, lost: false, detail });
    try {
      const found = await blobs.head(object.key);
      if (found === null) return lost;
      if (found.size !== object.size) return damaged(`${found.size} bytes instead of ${object.size}`);
      if (!whole) return null;
      const { size, sha256 } = await digest(await openBody(blobs, object.key, signal));
      if (size !== object.size) return damaged(`${size} bytes instead of ${object.size}`);
      return sha256 === object.sha256 ? null : damaged('its digest is not the recorded one');
    } catch (error) {
      if (!(error instanceof BlobError) || error.fault === 'unavailable') throw error;
      return error.fault === 'missing' ? lost : damaged(`cannot be read: ${describe(error)}`);
    }
  }

  return { row };
}

const remedies = {
  rebuilding: 'rebuilding',
  job_unfinished: 'under_way',
  not_ready: null,
  changed: null,
  not_found: null,
} as const;

function namedBy(row: Audited): Named[] {
  const { size, sha256 } = row;
  const named: Named[] = row.variants.map((variant) => ({ ...variant, role: 'variant', title: variant.name }));
  if (row.originalKey !== null) named.push({ role: 'original', title: 'original', key: row.originalKey, size, sha256 });
  if (row.stagingKey !== null) named.push({ role: 'staging', title: 'staging', key: row.stagingKey, size, sha256 });
  return named;
}

function asFinding(row: Audited, { object, lost, detail }: Flaw, repair: Remedy): Finding {
  const kind: FindingKind = lost ? `lost_${object.role}` : 'damaged';
  return { kind, attachmentId: row.id, key: object.key, detail: `${object.title}: ${detail}`, repair };
}
