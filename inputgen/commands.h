/* The subcommands of millrace-gen, one function each: arguments as main gets them, argv[0] already
 * "millrace-gen <command>". Returns the exit status: 0 done, 1 failed, 2 misused; replay and churn also 3: it
 * could not connect or open. */
#ifndef MILLRACE_INPUTGEN_COMMANDS_H
#define MILLRACE_INPUTGEN_COMMANDS_H

int inputgen_command_make(int argc, char **argv);
int inputgen_command_replay(int argc, char **argv);
int inputgen_command_churn(int argc, char **argv);

#endif
