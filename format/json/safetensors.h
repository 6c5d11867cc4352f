/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The safetensors format: 8 bytes with the length of a JSON header, the header, and the tensors'
 * bytes one after the other (https://huggingface.co/docs/safetensors, "Format"; FORMAT.md 8).
 */
#ifndef BTH_FORMAT_JSON_SAFETENSORS_H
#define BTH_FORMAT_JSON_SAFETENSORS_H

#include "berth.h"

/* The length before the header. */
#define BTH_SAFETENSORS_LENGTH_NBYTES 8
/* So much of a file tells whether it is one. */
#define BTH_SAFETENSORS_HEAD_NBYTES (BTH_SAFETENSORS_LENGTH_NBYTES + 1)
/* Readers of the format refuse a longer header. */
#define BTH_SAFETENSORS_MAX_HEADER_NBYTES 100000000

/* The name of a dtype; NULL: the format has none. */
const char *bth_safetensors_dtype_name(berth_dtype dtype);
/* The reverse; BERTH_DTYPE_NONE: PyTorch has no such dtype. `name` may be NULL. */
berth_dtype bth_safetensors_dtype_from_name(const char *name);
/* Of dtypes of less than a byte, whose last dimension counts elements in a file, and items here. */
int64_t bth_safetensors_elements_per_item(berth_dtype dtype);
/* The safetensors package writes tensors in the order of these numbers, then by name. */
size_t bth_safetensors_dtype_position(berth_dtype dtype);

/* The length of the header that these first bytes announce. 0: they are of another format. */
uint64_t bth_safetensors_header_nbytes(const uint8_t *head, size_t nbytes);

/* What a header says. */
typedef struct bth_safetensors {
    berth_value *root;     /* a dict of the tensors, in the order of their bytes */
    berth_value *metadata; /* a dict of the texts of __metadata__; NULL: there is none */
} bth_safetensors;

/* Refuses a length that does not fit the file, or the format (S1). */
int bth_safetensors_check_length(uint64_t header_nbytes, uint64_t file_nbytes, berth_error *error);
/* Parses a header whose length was checked. `head`: the file's first bytes, the header among them.
 * Makes the values, and storages with offsets but without data, in `tree` (S1 to S4).
 * BERTH_E_UNAVAILABLE: this build has no JSON library. */
int bth_safetensors_read(const uint8_t *head, uint64_t header_nbytes, uint64_t file_nbytes,
                         berth_tree *tree, bth_safetensors *contents, berth_error *error);

/* Adds tensors for names that a text of __metadata__ ties to one of the file's, with its storage,
 * as save_model of the safetensors package writes them. by_rule: only what no remark looks like. */
int bth_safetensors_add_tied_names(berth_tree *tree, bth_safetensors *contents, bool by_rule,
                                   berth_error *error);

/* One tensor to be written. */
typedef struct bth_safetensors_entry {
    const char *name;
    const berth_tensor *tensor;
} bth_safetensors_entry;

/* One text of __metadata__. */
typedef struct bth_safetensors_text {
    const char *key;
    const char *text;
} bth_safetensors_text;

/* What a header is written from. The entries are in the file's order, and have names in UTF-8. */
typedef struct bth_safetensors_new {
    const bth_safetensors_entry *entries;
    size_t n_entries;
    const bth_safetensors_text *texts;
    size_t n_texts;
    bool has_metadata; /* which may be empty */
} bth_safetensors_new;

/* *bytes: the length and the header, padded with spaces to a multiple of 8. The caller releases it.
 * BERTH_E_UNSUPPORTED: the header is longer than the format allows. */
int bth_safetensors_write(const bth_safetensors_new *contents, uint8_t **bytes, size_t *nbytes,
                          berth_error *error);

#endif
