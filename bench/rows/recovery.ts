/**
 * A backlog of about ten minutes, and every worker killed in the middle of it: what is lost, and what the kill costs.
 *
 * One run: a few pictures to learn the rate → the backlog, accepted at once → workers at work → half of it ready: SIGKILL of the workers,
 * started again at once → all ready → every row and every object looked at. The order is that of acceptance and the mix is even, so both
 * halves are the same work. The jobs that were being worked on wait for the end of their lease; everything else goes on.
 */
import { setTimeout as pause } from 'node:timers/promises';
import type { Scope } from '../../tests/support/on-end.ts';
import { shortTimes } from '../../tests/support/role.ts';
import { type Backlog, openBacklog, ratesOf } from '../backlog.ts';
import { missingPictures, type Picture, pictures } from '../pictures.ts';
import { openProduct, type Product } from '../product.ts';
import type { Figures, Row } from '../row.ts';
import { withScope } from '../scope.ts';

const ours = 'Skrepka';
/** The default of `LEASE`, which the row runs with unless it is `quick`. */
const leaseMs = 45_000;
const minutesDefault = 10;
/** Seldom enough to cost nothing. What became ready when is asked of the rows afterwards. */
const lookMs = 200;
/** Least that shows two halves, the first of them beyond its warm-up. */
const blocksMin = 4;

export const row: Row = {
  name: 'recovery',
  title: 'All workers killed in the middle of a backlog',
  about:
    'About ten minutes of the mixed pictures (`RECOVERY_MINUTES` says how many), accepted at once; all workers are killed by SIGKILL when half is ready and started again at once. ' +
    'The drain rate after the kill counts from the kill on, the start of the workers included, against the rate before it. ' +
    'Lost are attachments that are not ready, or whose objects are missing or of another size; doubled are jobs, results or objects beyond the one set that each upload is owed.',
  rounds: 3,
  missing: missingPictures,
  async open(_scope, { quick, say }) {
    const minutes = quick ? 0 : minutesFrom(process.env.RECOVERY_MINUTES);
    const mix = (await pictures(say)).slice(0, quick ? 6 : undefined);
    const run = (scope: Scope) => recover(scope, { mix, minutes, say });
    return {
      sides: [{ name: ours, run: () => withScope(run) }],
      ratios: [],
      bounds: [
        {
          name: 'drain after the kill, of the rate before',
          side: ours,
          figure: 'drainPercent',
          unit: '%',
          goal: { atLeast: 98 },
        },
        {
          name: 'first ready after the kill',
          side: ours,
          figure: 'firstReadyMs',
          unit: 'ms',
          goal: { atMost: leaseMs + 2_000 },
        },
        { name: 'lost', side: ours, figure: 'lost', unit: 'count', goal: { atMost: 0 } },
        { name: 'doubled', side: ours, figure: 'doubled', unit: 'count', goal: { atMost: 0 } },
        { name: 'jobs whose worker died', side: ours, figure: 'crashed', unit: 'count', goal: { atLeast: 1 } },
        { name: 'the last of those ready after the kill', side: ours, figure: 'crashedReadyMs', unit: 'ms' },
        { name: 'workers started again after the kill', side: ours, figure: 'startedMs', unit: 'ms' },
        { name: 'backlog', side: ours, figure: 'jobs', unit: 'count' },
      ],
    };
  },
};

function minutesFrom(text: string | undefined): number {
  const minutes = Number(text ?? minutesDefault);
  if (minutes > 0 && minutes <= 120) return minutes;
  throw new Error(`Expected RECOVERY_MINUTES above 0 and at most 120, received "${text}"`);
}

interface Plan {
  readonly mix: readonly Picture[];
  /** 0: the least that shows it, with short leases. */
  readonly minutes: number;
  say(line: string): void;
}

async function recover(scope: Scope, { mix, minutes, say }: Plan): Promise<Figures> {
  const product = await openProduct(scope, { settings: minutes === 0 ? shortTimes : {} });
  const backlog = await openBacklog(scope, product, mix);
  const perSecond = await learnRate(backlog);
  const blocks = Math.max(blocksMin, 2 * Math.round((minutes * 60 * perSecond) / mix.length / 2));
  const jobs = blocks * mix.length;
  await product.kill('workers');
  await backlog.accept(jobs);
  say(`${jobs} uploads are accepted, ${Math.round(jobs / perSecond)} s of work`);
  await product.start('workers');
  const killedAt = await killInTheMiddle(product, backlog, jobs / 2);
  const startedMs = Date.now() - killedAt;
  say('half is ready, and all workers were killed and started again');
  const ended = await backlog.untilAllReady({ deadlineMs: 120_000 + (3 * jobs * 1000) / perSecond });
  say('all is ready; looking at every row and object');
  const kept = await backlog.examine();
  return { ...ratesOf(ended, killedAt, jobs / blocks), ...kept, startedMs, jobs };
}

/** A block to warm up, which is thrown away, and one that counts. */
async function learnRate(backlog: Backlog): Promise<number> {
  await backlog.accept(backlog.block);
  await backlog.untilAllReady({ deadlineMs: 600_000 });
  const startedAtMs = performance.now();
  await backlog.accept(backlog.block);
  await backlog.untilAllReady({ deadlineMs: 600_000 });
  return backlog.block / ((performance.now() - startedAtMs) / 1000);
}

/** Milliseconds since 1970 at which all workers were gone. They are running again when it resolves. */
async function killInTheMiddle(product: Product, backlog: Backlog, half: number): Promise<number> {
  while ((await backlog.countReady()) < half) await pause(lookMs);
  await product.kill('workers');
  const killedAt = Date.now();
  await product.start('workers');
  return killedAt;
}
