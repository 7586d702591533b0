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
  const rare = seed % 16 === 11;
  const fates = rare ? rareFates(seed) : drawnFates(seed, { rate, crashesMax: 12 });
  return await play({ seed, fates, faultMs: 180_000, uploads, family });
}

/** Polls are nine effects of ten: here they go mostly well, and every fourth of the others does not. */
function rareFates(seed: number): Fates {
  const ofPolls = drawnFates(seed, { rate: 0.005, crashesMax: 3 });
  const ofOthers = drawnFates(seed + 1, { rate: 0.25, crashesMax: 25 });
  return { of: (site, allowed, number) => (dull.test(site) ? ofPolls : ofOthers).of(site, allowed, number) };
}

/** What is asked again and again, and mostly finds nothing. */
const dull =
  /untilDueMs|takeDue|countAnnounced|store\.(lead|queue|load)|dueCleanups|feedReprocessing|recentPace|health/;

/** What happened in a schedule, for people: everything but polls that went well. */
export function story({ steps }: Outcome): string[] {
  return steps
    .filter(({ fate, site, idle }) => fate !== 'ok' || (!idle && !dull.test(site)))
    .map(({ number, atMs, process, site, fate }) => {
      const at = `${(atMs / 1000).toFixed(3)} s`.padStart(12);
      return `${String(number).padStart(6)} ${at}  ${process.padEnd(12)} ${site}${fate === 'ok' ? '' : `  ${fate.toUpperCase()}`}`;
    });
}
