#include "bench/ts/descramble.h"

static bool take_word(struct bench_descrambler *descrambler, bool odd)
{
    uint8_t word[BENCH_WORD_BYTES];
    if (descrambler->context == NULL && (descrambler->context = EVP_CIPHER_CTX_new()) == NULL)
        return false;
    descrambler->number += descrambler->begun || odd;
    descrambler->begun = true;
    descrambler->word(descrambler->argument, descrambler->number, word);
    return EVP_DecryptInit_ex(descrambler->context, EVP_aes_128_cbc(), NULL, word, NULL) == 1 &&
           EVP_CIPHER_CTX_set_padding(descrambler->context, 0) == 1;
}

bool bench_descramble(struct bench_descrambler *descrambler, uint8_t packet[188])
{
    static const uint8_t iv[] = "DVBTMCPTAESCISSA";
    int control = packet[3] >> 6, done;
    bool odd = control == 3, is_other = odd != (descrambler->number % 2 != 0);
    int offset = packet[3] & 0x20 ? 5 + packet[4] : 4;
    if (packet[0] != 0x47 || control == 1)
        return false;
    if (control == 0)
        return true;
    if ((packet[3] & 0x10) == 0 || offset >= 188)
        return false;
    if ((!descrambler->begun || is_other) && !take_word(descrambler, odd))
        return false;
    descrambler->scrambled++;
    packet[3] &= 0x3F;
    return EVP_DecryptInit_ex(descrambler->context, NULL, NULL, NULL, iv) == 1 &&
           EVP_DecryptUpdate(descrambler->context, packet + offset, &done, packet + offset,
                             (188 - offset) / 16 * 16) == 1;
}

void bench_descrambler_close(struct bench_descrambler *descrambler)
{
    EVP_CIPHER_CTX_free(descrambler->context);
    descrambler->context = NULL;
}
