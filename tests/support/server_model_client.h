/* A client of the model (server_model.h) and what it expects. Private to its three files: server_model.c
 * goes through sequences, server_model_client.c says things, server_model_answers.c judges what is told. */
#ifndef MILLRACE_TESTS_SERVER_MODEL_CLIENT_H
#define MILLRACE_TESTS_SERVER_MODEL_CLIENT_H

#include "core/hmac.h"
#include "core/lane.h"
#include "core/protocol.h"
#include "tests/support/tape.h"
#include "tests/support/virtual_gpu.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>

#define STREAMS      8   /* that a client asks for in its life */
#define REQUESTS     32  /* that a client has unanswered */
#define PACKETS      128 /* of a stream */
#define NOTES        64  /* PONGs and ERRORs 6 that a client waits for */
#define PACKET_BYTES 4096
#define FRAME_BYTES  (PROTOCOL_HEADER_BYTES + PACKET_BYTES + 512)

struct packet {
    uint32_t bytes, seed;
    uint64_t end;        /* position behind it in what the client sends */
    core_ns arrival_ns;  /* when its last byte was sent */
    core_ns eligible_ns; /* by the document, from its arrival */
    bool first, last;    /* of a message */
};

struct stream {
    uint32_t id;
    struct core_stream_spec spec;
    EVP_CIPHER_CTX *chain;
    uint32_t next, sent, done; /* packets given, sent whole, and answered */
    uint32_t room;             /* packets that the server holds before it stops reading */
    uint32_t changing;         /* MODIFYs without an answer, which may change that */
    core_ns tat_ns;            /* of the next packet */
    struct packet packets[PACKETS];
    struct protocol_closed counts;         /* of what came */
    bool open, asked_to_close, modified;   /* modified: by a MODIFY that may come into force */
    bool degraded, noticed;                /* by the last NOTICE; there was one */
    core_ns fault_ns;                      /* when a result had flag 8 first */
    struct test_virtual_gpu_losses losses; /* when it was asked for */
    /* Of messages: */
    bool within, broken;    /* what is given ends within one; what is answered is one that is broken */
    uint64_t given, number; /* number of the next one to be given, and of the next one to be answered */
    bool gave_iv;           /* the client, at its OPEN */
    bool knows_key;         /* the last key that was granted came inline */
    uint8_t iv[16];         /* as OPENED says */
    uint8_t block[16];      /* the last one that was encrypted */
    uint8_t key[32];        /* in force for what is answered */
    SHA256_CTX code;        /* of the message that is answered, under mac_key */
    struct core_hmac_key mac_key;
    uint8_t mac_id[16];
    uint32_t position; /* blocks of the message before what is answered next */
    uint32_t rekeys;   /* that were asked for */
    uint32_t changes;  /* that were granted, and whose messages have no answer yet */
    struct change {
        uint64_t first;
        uint8_t key[32];
    } change[2];
};

struct request {
    uint8_t type; /* 0: none */
    uint32_t id, stream;
    struct protocol_open open;
    uint8_t key[32];
    enum protocol_refusal must; /* it must be refused so; 0: it may be granted */
    core_ns latency_ns;
    uint64_t first;                        /* REKEY: from this message on */
    bool may_be_early;                     /* REKEY: the first one of its stream */
    struct test_virtual_gpu_losses losses; /* when it was made */
    uint64_t end;                          /* position behind it in what the client sends */
};

/* A PONG or an ERROR 6 that is to come; these come in the order of their frames. */
struct note {
    uint8_t type;
    uint32_t id;
    uint8_t bytes, fill;
};

struct client {
    int descriptor; /* -1: none */
    uint16_t version;
    bool greets;   /* it has said HELLO */
    bool welcomed; /* and was answered */
    bool ended;    /* by a fatal ERROR */
    bool half_closed, deaf;
    bool may_share, asks_lane, shares; /* WELCOME offers a lane; LANE was sent; frames go through it */
    struct core_lane lane;
    bool held_up;      /* the server may have had to stop reading it: when packets came is not known */
    bool drained;      /* the server was told to stop, and tells it */
    bool workers_late; /* in its life: nobody has promised then */
    enum protocol_error fatal;     /* it has broken a rule of that; 0: none */
    uint32_t requests_made, opens; /* opens: OPENs among them */
    core_ns offer_interval_ns;     /* of the last REFUSED */
    struct request requests[REQUESTS];
    struct stream streams[STREAMS];
    uint32_t stream_count, note_first, note_count;
    struct note notes[NOTES];
    uint64_t given, sent; /* bytes of its life; between them, what is to be sent */
    size_t output_bytes, input_bytes;
    uint8_t output[16 * FRAME_BYTES], input[1 << 20];
};

/* Tells a deviation, and ends the program. */
__attribute__((format(printf, 2, 3))) _Noreturn void model_deviate(const struct client *client,
                                                                   const char *format, ...);

#define MUST(client, condition, ...) ((condition) ? (void)0 : model_deviate(client, __VA_ARGS__))

/* ---- server_model_client.c ---- */

/* The keys that have a name. */
extern const char model_keyring[];

/* Is the client one that may go on, and is there room for a frame? */
bool model_has_room(const struct client *client);

/* Do clients of this sequence, where they speak version 3, ask for messages? */
void model_talk_messages(bool talk);

/* Frames of a client that has room, with what they must be answered; wrong ones may end its connection. */
void model_give_hello(struct client *client, struct tape *tape, bool right);
void model_give_open(struct client *client, struct tape *tape, bool right, uint8_t type);
void model_give_right_data(struct client *client, struct tape *tape);
void model_give_unknown(struct client *client, struct tape *tape, uint8_t type);
void model_give_wrong_data(struct client *client, struct tape *tape);
void model_give_close(struct client *client, struct tape *tape);
/* Or LANE, where nothing is under way. */
void model_give_ping(struct client *client, struct tape *tape);
void model_give_malformed(struct client *client, struct tape *tape);
void model_give_modify(struct client *client, struct tape *tape);
void model_give_rekey(struct client *client, struct tape *tape);

/* The bytes of a packet. */
void model_fill_packet(uint8_t *bytes, uint32_t count, uint32_t seed);

/* Bytes of a frame behind those that are to be sent; and a place for the answer. NULL: too many are open. */
void model_give(struct client *client, const void *frame, size_t bytes);
struct request *model_new_request(struct client *client, uint8_t type);

/* Sends so many bytes of them, as far as the socket takes them. */
void model_push(struct client *client, size_t most);

/* ---- server_model_answers.c ---- */

/* A frame from the server. */
void model_on_frame(struct client *client, const struct protocol_header *header, const uint8_t *body);

#endif
