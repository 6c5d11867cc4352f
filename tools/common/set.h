/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Several files that are one checkpoint: an index with its files, or a DCP directory. A set is a
 * value whose storages have no bytes in memory, and for each storage a function that reads them
 * from where they lie. Berth plans the file that a save of this value would write, and opens it
 * without writing it: the storages' bytes are read when they are asked for. So every command gets a
 * checkpoint like any other, and needs no memory for the bytes.
 */
#ifndef BERTH_TOOLS_SET_H
#define BERTH_TOOLS_SET_H

#include <berth/more.h>

typedef struct file_set file_set;

/*
 * Reads bytes [offset, offset + nbytes) of a storage, in this machine's byte order. Returns 0 or a
 * status. From several threads at once.
 */
typedef int (*set_read_function)(void *context, void *buffer, size_t nbytes, uint64_t offset,
                                 berth_error *error);

/* `path`: of the index or directory, for messages. NULL: no memory, which is printed. */
file_set *set_new(const char *path);
/* Frees `owned` by `free_owned` behind all else; both may be NULL. */
void set_own(file_set *s, void *owned, void (*free_owned)(void *owned));
void set_free(file_set *s);
/* Where the value is made: the caller adds to this tree, and sets the root, a dict. */
berth_tree *set_tree(file_set *s);
void set_root(file_set *s, berth_value *root);

/* What `berth info` shows of a set. */
typedef struct set_facts {
    const char *container; /* static */
    size_t n_files, n_pieces;
    uint64_t nbytes; /* of the files */
} set_facts;

void set_tell_facts(file_set *s, const set_facts *facts);
const set_facts *set_get_facts(const file_set *s);

/* ---- where the bytes of storages are; each returns 0, or EXIT_TROUBLE after printing why ---- */

/* A storage of the set's own tree, made of BERTH_ELSEWHERE. */
int set_add_storage(file_set *s, const berth_storage *storage, set_read_function read,
                    void *context);
/* A value of the set's tree that is a copy of one of a checkpoint: its storages are there. */
int set_add_copied(file_set *s, const berth_value *copy, const berth_value *original,
                   berth_checkpoint *checkpoint);
/* Closes the checkpoint with the set. */
int set_add_checkpoint(file_set *s, berth_checkpoint *checkpoint);

/* Opens the set. Returns 0, or an exit code after printing why. */
int set_open(file_set *s, const berth_params *params, berth_checkpoint **checkpoint);

/*
 * The error of the first read of a set's bytes that failed, of the sets that are open. The library
 * only knows that the source failed. False: none has.
 */
bool set_read_error(berth_error *error);

#endif
