/** The schedule of a seed: how often fate strikes, how many uploads there are, how long it goes on. A seed is all that a replay needs. */
import { type Outcome, play } from './stage.ts';
import { drawnFates } from './world.ts';

/** Of all effects: from an undisturbed run to one in which every sixth goes wrong. */
const rates = [0, 0.01, 0.03, 0.08, 0.16] as const;

export async function playSeed(seed: number): Promise<Outcome> {
  const rate = rates[seed % rates.length] ?? 0;
  const uploads = 4 + (seed % 7);
  return await play({ seed, fates: drawnFates(seed, { rate, crashesMax: 12 }), faultMs: 180_000, uploads });
}

/** What happened in a schedule, for people: everything but polls that went well. */
export function story({ steps }: Outcome): string[] {
  const dull =
    /untilDueMs|takeDue|countAnnounced|store\.(lead|queue|load)|dueCleanups|feedReprocessing|recentPace|health/;
  return steps
    .filter(({ fate, site, idle }) => fate !== 'ok' || (!idle && !dull.test(site)))
    .map(({ number, atMs, process, site, fate }) => {
      const at = `${(atMs / 1000).toFixed(3)} s`.padStart(12);
      return `${String(number).padStart(6)} ${at}  ${process.padEnd(12)} ${site}${fate === 'ok' ? '' : `  ${fate.toUpperCase()}`}`;
    });
}
