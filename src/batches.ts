/**
 * Batches: calls that come while a statement is under way share the next one.
 *
 * A call that comes alone goes alone, at the end of its turn of the event loop; a busy caller pays one statement, and one commit,
 * for many. Nothing waits for a batch to fill.
 *
 * - **Order.** A batch holds its calls in the order in which they came, and batches begin in that order.
 * - **Faults.** What `work` rejects goes to every call of its batch: an outcome that is unknown is unknown to each of them. Where
 *   `isOfOne` says that an error is of some row and that nothing was written, each call is made again by itself, so that the broken one fails alone.
 * - **Patience.** A batch that takes longer than `patienceMs` is left to itself and the next begins beside it: a lock or a dead line that one
 *   call waits for does not hold all others up.
 */

export interface BatchSettings {
  /** Calls of one batch at most. */
  readonly most: number;
  readonly patienceMs?: number;
  /** Certainly nothing was written, and one call alone may be the reason. Left out: no error is. */
  readonly isOfOne?: (error: unknown) => boolean;
}

interface Call<Item, Answer> {
  readonly item: Item;
  resolve(answer: Answer): void;
  reject(error: unknown): void;
}

const patienceMsDefault = 100;

/** `work` answers for each item, in their order. */
export function inBatches<Item, Answer>(
  work: (items: readonly Item[]) => Promise<readonly Answer[]>,
  { most, patienceMs = patienceMsDefault, isOfOne = () => false }: BatchSettings,
): (item: Item) => Promise<Answer> {
  const waiting: Call<Item, Answer>[] = [];
  let running = false;

  async function run(): Promise<void> {
    running = true;
    while (waiting.length > 0) {
      // What comes in this turn of the event loop goes along, the next calls of those who were just answered among it.
      await new Promise<void>((resolve) => setImmediate(resolve));
      await atMost(patienceMs, together(waiting.splice(0, most)));
    }
    running = false;
  }

  async function together(calls: readonly Call<Item, Answer>[]): Promise<void> {
    try {
      const answers = await work(calls.map(({ item }) => item));
      if (answers.length !== calls.length) {
        throw new Error(`Expected ${calls.length} answers for a batch, received ${answers.length}`);
      }
      for (const [at, call] of calls.entries()) call.resolve(answers[at] as Answer);
    } catch (error) {
      if (calls.length > 1 && isOfOne(error)) await Promise.all(calls.map((call) => together([call])));
      else for (const call of calls) call.reject(error);
    }
  }

  return (item) =>
    new Promise((resolve, reject) => {
      waiting.push({ item, resolve, reject });
      if (!running) void run();
    });
}

/** Resolves with `work`, which never rejects, or after `ms`. */
async function atMost(ms: number, work: Promise<void>): Promise<void> {
  const timer = Promise.withResolvers<void>();
  const timeout = setTimeout(timer.resolve, ms);
  await Promise.race([work, timer.promise]);
  clearTimeout(timeout);
}
