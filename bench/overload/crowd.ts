/**
 * Two scenes with people in them. A flood: one user sends several times the capacity, and a bystander now and then one picture.
 * A burst: everybody sends at once, and everybody does what `Retry-After` says until they are accepted.
 */
import { seeded } from '../../tests/support/pictures.ts';
import { bystanderPerSecond, crowdLoad, poisson, type Times } from './design.ts';
import {
  type Fate,
  type Kept,
  keptOf,
  type Lag,
  lagOf,
  type Percentiles,
  percentilesOf,
  rounded,
  type Shares,
  sharesOf,
  type Taken,
  takenOf,
} from './figures.ts';
import type { Sent } from './load-process.ts';
import type { Stage } from './stage.ts';
import { type QueueSample, spentBy, startWatching } from './watch.ts';

export interface Patience {
  readonly clients: number;
  readonly refusedAtFirst: number;
  /** Share of those who were refused at first and accepted when they came back for the first time; null: nobody was. */
  readonly acceptedAtFirstReturn: number | null;
  /** Of those who were refused at first. */
  readonly tries: Percentiles | null;
  /** What the first refusal said, and how long it really was from there to the 202. */
  readonly toldSeconds: Percentiles | null;
  readonly neededSeconds: Percentiles | null;
  /** Accepted at last, out of all. */
  readonly acceptedShare: number;
  /** Ready a second from the burst's beginning to its last picture: less than the capacity means that slots were idle meanwhile. */
  readonly readyPerSecond: number | null;
}

export interface Crowd {
  readonly flood: Taken;
  readonly bystander: Taken;
  readonly floodKept: Kept;
  readonly floodQueue: readonly QueueSample[];
  readonly patience: Patience;
  readonly patienceKept: Kept;
  readonly patienceLag: Lag;
  readonly patienceQueue: readonly QueueSample[];
  readonly shares: Shares;
}

interface Play {
  readonly capacityPerSecond: number;
  readonly picture: string;
  readonly times: Times;
  readonly seed: number;
}

interface Hearing {
  readonly cores: number;
  say(line: string): void;
}

const floodUser = 0;
const bystander = 1;
/** The bystander comes when the flood has all the places that one user may have. */
const floodHasRisen = 0.35;

export async function playCrowd(stage: Stage, play: Play, { cores, say }: Hearing): Promise<Crowd> {
  say(`a flood of ${crowdLoad.flood} times the capacity from one user, and a bystander`);
  const watchingFlood = startWatching(stage.db, stage.cast);
  const before = await spentBy(stage.cast);
  const { sent, risenAt } = await playFlood(stage, play);
  const after = await spentBy(stage.cast);
  await stage.untilDrained();
  const floodQueue = (await watchingFlood.stop()).queue;
  const fates = await stage.fatesOf(sent);

  say(`a burst of ${crowdLoad.burst} times the capacity, and everybody comes back when told to`);
  const watchingBurst = startWatching(stage.db, stage.cast);
  const burst = await playBurst(stage, play);
  await stage.untilDrained();
  const patienceQueue = (await watchingBurst.stop()).queue;
  const burstFates = await stage.fatesOf(burst);
  return {
    flood: takenOf(
      // Before it has all its places, a flood does not know what it is to wait.
      sent.filter(({ user, intendedAt }) => user === floodUser && intendedAt >= risenAt),
      fates,
    ),
    bystander: takenOf(
      sent.filter(({ user }) => user === bystander),
      fates,
    ),
    floodKept: keptOf(sent, fates),
    floodQueue,
    patience: patienceOf(burst, burstFates),
    patienceKept: keptOf(burst, burstFates),
    patienceLag: lagOf(patienceQueue),
    patienceQueue,
    shares: sharesOf(before, after, cores),
  };
}

async function playFlood(stage: Stage, { capacityPerSecond, picture, times, seed }: Play) {
  const random = seeded(seed);
  const risenMs = times.floodMs * floodHasRisen;
  const flood = poisson(crowdLoad.flood * capacityPerSecond, times.floodMs, random).map((atMs) => ({
    atMs,
    user: floodUser,
    expect: random() < 0.5,
    patient: false,
  }));
  const single = poisson(bystanderPerSecond, times.floodMs - risenMs, random).map((atMs) => ({
    atMs: risenMs + atMs,
    user: bystander,
    expect: false,
    patient: false,
  }));
  const arrivals = [...flood, ...single].sort((one, other) => one.atMs - other.atMs);
  const { url } = stage.product;
  const { sent, beganAt } = await stage.load.play({
    url,
    tokens: stage.tokens,
    picture,
    play: { kind: 'open', arrivals, durationMs: times.floodMs },
  });
  return { sent, risenAt: beganAt + risenMs };
}

async function playBurst(stage: Stage, { capacityPerSecond, picture, times, seed }: Play): Promise<readonly Sent[]> {
  const random = seeded(seed + 1);
  const others = stage.tokens.length - 2;
  const arrivals = poisson(crowdLoad.burst * capacityPerSecond, times.burstMs, random).map((atMs) => ({
    atMs,
    user: 2 + Math.floor(random() * others),
    expect: true,
    patient: true,
  }));
  const { url } = stage.product;
  return (
    await stage.load.play({
      url,
      tokens: stage.tokens,
      picture,
      play: { kind: 'open', arrivals, durationMs: times.burstMs },
    })
  ).sent;
}

export function patienceOf(sent: readonly Sent[], fates: ReadonlyMap<string, Fate>): Patience {
  const refused = sent.flatMap((one) => {
    const [first, second] = one.tries;
    return first && first.status !== 202 ? [{ one, first, second, last: one.tries.at(-1) ?? first }] : [];
  });
  const accepted = refused.filter(({ last }) => last.status === 202);
  const atFirstReturn = refused.filter(({ second }) => second?.status === 202).length;
  const readyAt = [...fates.values()].flatMap((fate) => fate.readyAt ?? []);
  const beganAt = Math.min(...sent.map(({ intendedAt }) => intendedAt));
  const spanMs = Math.max(...readyAt) - beganAt;
  return {
    clients: sent.length,
    refusedAtFirst: refused.length,
    acceptedAtFirstReturn: refused.length === 0 ? null : rounded(atFirstReturn / refused.length),
    tries: percentilesOf(refused.map(({ one }) => one.tries.length)),
    toldSeconds: percentilesOf(refused.flatMap(({ first }) => first.retryAfterSeconds ?? [])),
    neededSeconds: percentilesOf(accepted.map(({ first, last }) => (last.answeredAt - first.answeredAt) / 1000)),
    acceptedShare: rounded(sent.filter(({ tries }) => tries.at(-1)?.status === 202).length / Math.max(1, sent.length)),
    readyPerSecond: readyAt.length < 3 ? null : rounded((readyAt.length * 1000) / spanMs),
  };
}
