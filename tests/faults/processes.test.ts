/** The storm of faults on real processes with the embedded engines. */
import { storm } from '../contract/storm.ts';
import { embeddedStorm } from '../support/storm/embedded.ts';

storm('the embedded engines', embeddedStorm);
