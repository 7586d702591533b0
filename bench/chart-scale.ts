/** The axes of a chart: where a value lies between two ends, and at which values a reader finds a number. */

export interface Scale {
  /** Inclusive; both lie on the axis. */
  readonly min: number;
  readonly max: number;
  readonly ticks: readonly number[];
  /** From 0 at `min` to 1 at `max`. */
  at(value: number): number;
}

export interface ScaleWish {
  readonly kind: 'linear' | 'log';
  readonly min?: number;
  readonly max?: number;
  /** Instead of those that are found here. */
  readonly ticks?: readonly number[];
}

/** Holds all `values`. Throws `RangeError` where one is not finite, or not above 0 on a log axis; one value gets room on both sides. */
export function scaleOf(values: readonly number[], wish: ScaleWish): Scale {
  const all = [...values, ...(wish.ticks ?? []), ...[wish.min, wish.max].filter((end) => end !== undefined)];
  if (all.length === 0) throw new RangeError('Expected at least one value for an axis, received none');
  for (const value of all) {
    if (!Number.isFinite(value)) throw new RangeError(`Expected a finite value on an axis, received ${value}`);
    if (wish.kind === 'log' && value <= 0) {
      throw new RangeError(`Expected a value above 0 on a log axis, received ${value}`);
    }
  }
  return wish.kind === 'log' ? logScale(all, wish) : linearScale(all, wish);
}

/** Begins at 0 unless a value is below it or `min` says otherwise: a bar that begins elsewhere lies about its length. */
function linearScale(all: readonly number[], wish: ScaleWish): Scale {
  const low = wish.min ?? Math.min(0, ...all);
  const high = wish.max ?? Math.max(...all);
  const step = niceStep((high > low ? high - low : 1) / 5);
  const min = wish.min ?? Math.floor(low / step) * step;
  const max = Math.max(wish.max ?? Math.ceil(high / step) * step, min + (high > low ? 0 : step));
  const first = Math.ceil(min / step - 1e-9);
  const count = Math.floor(max / step + 1e-9) - first + 1;
  const ticks = wish.ticks ?? Array.from({ length: count }, (_, index) => (first + index) * step);
  return { min, max, ticks, at: (value) => (value - min) / (max - min) };
}

function niceStep(raw: number): number {
  const power = 10 ** Math.floor(Math.log10(raw));
  const times = [1, 2, 2.5, 5, 10].find((nice) => nice * power >= raw * (1 - 1e-9)) ?? 10;
  return times * power;
}

/** Ends at 1, 2 or 5 times a power of ten; where that would be more than eight numbers, only powers of ten are told. */
function logScale(all: readonly number[], wish: ScaleWish): Scale {
  const low = Math.min(...all);
  const high = Math.max(...all);
  const steps = stepsAround(low, high === low ? high * 1.001 : high);
  const min = wish.min ?? (wish.ticks ? low : (steps[0] ?? low));
  const max = wish.max ?? (wish.ticks && high > low ? high : (steps.at(-1) ?? high));
  const inside = steps.filter((step) => step >= min * (1 - 1e-9) && step <= max * (1 + 1e-9));
  const powers = inside.filter((step) => Math.abs(Math.log10(step) - Math.round(Math.log10(step))) < 1e-9);
  const ticks = wish.ticks ?? (inside.length > 8 ? powers : inside);
  const span = Math.log(max / min);
  return { min, max, ticks, at: (value) => Math.log(value / min) / span };
}

function stepsAround(low: number, high: number): number[] {
  const all: number[] = [];
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power += 1) {
    // Through text, because 10 ** -3 * 2 is not 0.002.
    for (const times of [1, 2, 5]) all.push(Number(`${times}e${power}`));
  }
  const from = all.findLastIndex((step) => step <= low * (1 + 1e-9));
  const to = all.findIndex((step) => step >= high * (1 - 1e-9));
  return all.slice(Math.max(from, 0), to === -1 ? all.length : to + 1);
}

/** `1,200`, `0.05`, `2.5`: at most three digits that matter beside those before the point. */
export function numberText(value: number): string {
  if (value === 0) return '0';
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return new Intl.NumberFormat('en-US', { maximumFractionDigits: Math.min(digits, 12) }).format(value);
}
