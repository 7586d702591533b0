/** How long a fault lasts: a measure of the fault itself, never a wait for what follows from it. */
import { setTimeout as wait } from 'node:timers/promises';

export const lasts = (ms: number): Promise<void> => wait(ms);
