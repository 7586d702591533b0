/** The journeys on the embedded engines: the queue in PostgreSQL and objects in a folder. */
import { embedded, journeys } from '../contract/journeys.ts';

journeys('the embedded engines', embedded);
