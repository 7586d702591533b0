/** The schedule of a seed: its family, how often fate strikes, how many uploads there are. A seed is all that a replay needs. */
import { type Family, type Outcome, play } from './stage.ts';
import { drawnFates, type Fates } from './world.ts';

/** Of all effects: from an undisturbed run to one in which every sixth goes wrong. */
const rates = [0, 0.01, 0.03, 0.08, 0.16] as const;

/** Of 16 seeds, these are of a family of their own; the number has no divisor with those of rates and uploads in common. */
const ofSixteen: Readonly<Record<number, Family>> = { 3: 'flood', 6: 'losses', 9: 'older', 12: 'older', 14: 'losses' };

export async function playSeed(seed: number): Promise<Outcome> {
  const rate = rates[seed % rates.length] ?? 0;
  const family = ofSixteen[seed % 16] ?? 'usual';
  const uploads = family === 'flood' ? 40 : 4 + (seed % 7);
  const isRare = seed % 16 === 11 || seed % 16 === 14;
  const fates = isRare ? rareFates(seed) : drawnFates(seed, { rate, crashesMax: 12 });
  return await play({ seed, fates, faultMs: isRare ? rareMs : usualMs, uploads, family });
}

const usualMs = 3 * 60_000;
/** Long enough for objects to be so old that they can be strays while faults still go on. */
const rareMs = 25 * 60_000;

/** Polls are nine effects of ten: here they go well, some of the others do not, and of the rarest most. */
function rareFates(seed: number): Fates {
  const ofOthers = drawnFates(seed, { rate: 0.04, crashesMax: 6 });
  const ofRarest = drawnFates(seed + 1, { rate: 0.6, crashesMax: 10 });
  return {
    of(site, allowed, number) {
      if (dull.test(site)) return 'ok';
      return (rarest.test(site) ? ofRarest : ofOthers).of(site, allowed, number);
    },
  };
}

/** What happens only after another fault, or when something is lost or left over. */
const rarest =
  /attachmentFor|readAttempt|acceptedAttachment|awaitingCleanup|knownAttachments|addCleanups|audited|rebuild|nak|extend$|(blobs|scratch)\.health|store\.(accept|fail|release)$/;

/** What is asked again and again, and mostly finds nothing. */
const dull =
  /untilDueMs|takeDue|countAnnounced|store\.(lead|queue|load)|dueCleanups|feedReprocessing|recentPace|(store|broker)\.health/;

/** What happened in a schedule, for people: everything but polls that went well. */
export function story({ steps }: Outcome): string[] {
  return steps
    .filter(({ fate, site, idle }) => fate !== 'ok' || (!idle && !dull.test(site)))
    .map(({ number, atMs, process, site, fate }) => {
      const at = `${(atMs / 1000).toFixed(3)} s`.padStart(12);
      return `${String(number).padStart(6)} ${at}  ${process.padEnd(12)} ${site}${fate === 'ok' ? '' : `  ${fate.toUpperCase()}`}`;
    });
}
