/* Standard input, output and error, for the first line of every main. */
#ifndef MILLRACE_CORE_STANDARD_H
#define MILLRACE_CORE_STANDARD_H

#include <stdbool.h>

/* Opens on /dev/null what is closed of descriptors 0, 1 and 2, so that no file or socket of the program ever
 * gets such a number and is written to as if it were the log. Using such a descriptor stays the error that it
 * was (EBADF): nobody's output is lost in silence. False: that can not be done, and nothing else should be.
 */
bool core_standard_open(void);

#endif
