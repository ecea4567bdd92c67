#include "gpu/aes.h"

const uint32_t gpu_aes_table[GPU_AES_TABLE_ENTRIES] = {GPU_AES_TABLE_VALUES};

#define KEY_WORDS_MAX 8

/* The S-box on every byte of a word. Reads the whole table for each, lest the caches tell which entry. */
static uint32_t substitute(uint32_t word)
{
    uint32_t result = 0;
    for (uint32_t byte = 0; byte < 4; byte++) {
        const uint32_t wanted = word >> 8 * byte & 0xff;
        uint32_t found = 0;
        for (uint32_t entry = 0; entry < GPU_AES_TABLE_ENTRIES; entry++) {
            const uint32_t mask = ((entry ^ wanted) - 1) >> 8; /* all ones below the top byte, or 0 */
            found |= gpu_aes_table[entry] & mask;
        }
        result |= (found >> 8 & 0xff) << 8 * byte;
    }
    return result;
}

core_status gpu_key_expand(struct gpu_key *slot, const uint8_t *key, uint32_t key_bytes)
{
    memset(slot, 0, sizeof *slot);
    if (key_bytes != 16 && key_bytes != 24 && key_bytes != 32)
        return CORE_INVALID;
    const uint32_t key_words = key_bytes / 4;
    const uint32_t words = 4 * (key_words + 7);
    memcpy(slot->round_words, key, key_bytes);
    uint32_t constant = 1;
    for (uint32_t i = key_words; i < words; i++) {
        uint32_t word = slot->round_words[i - 1];
        if (i % key_words == 0) {
            word = substitute(word >> 8 | word << 24) ^ constant;
            constant = constant << 1 ^ (constant >> 7) * 0x11b;
        } else if (key_words == KEY_WORDS_MAX && i % key_words == 4) {
            word = substitute(word);
        }
        slot->round_words[i] = slot->round_words[i - key_words] ^ word;
    }
    slot->rounds = key_words + 6;
    return CORE_OK;
}
