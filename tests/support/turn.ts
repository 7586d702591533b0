/** A turn of the event loop: between two of them, every promise that can settle does. */
import { setImmediate } from 'node:timers/promises';

export const turn = (): Promise<void> => setImmediate();
