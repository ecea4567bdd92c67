/* main of the `millrace` command: picks the subcommand. */
#include "client/command.h"
#include "core/standard.h"

static const struct core_options_command commands[] = {
    {"encrypt", command_encrypt, "send a file or standard input as one stream, write what comes back"},
    {"hls", command_hls, "encrypt live HLS as it comes out of a packager"},
    {"ts", command_ts, "scramble MPEG transport streams between UDP or RTP sockets"},
    {"query", command_query, "ask whether a stream would be admitted, and what would be"},
    {"status", command_status, "show the server's figures, its threads and its streams"},
    {"ping", command_ping, "measure the way to the server and back"},
};

int main(int argc, char **argv)
{
    const struct core_options_program program = {
        .name = "millrace",
        .summary = "Client of millraced, which encrypts live streams before hard deadlines.",
        .notes = "Exit status: 0 done; 1 failed (no connection, reading, writing, or the server\n"
                 "broke off); 2 the command line or a file it names is wrong; 3 the server\n"
                 "refused the stream; 4 done, but deadlines were missed; 128 and the\n"
                 "signal's number: stopped by it, as 130 by Ctrl-C.",
        .commands = commands,
        .command_count = sizeof commands / sizeof commands[0]};

    if (!core_standard_open())
        return COMMAND_FAILED;
    return core_options_run(&program, argc, argv);
}
