/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * DCP directories, which torch.distributed.checkpoint.save writes: `.metadata`, a pickle that says
 * which tensors there are and where their pieces lie, and files of pieces, each a small archive of
 * torch.save. dcp_metadata.c reads and checks `.metadata`, dcp_table.c and dcp_outline.c check it,
 * dcp_pieces.c reads the pieces, dcp.c makes a set of them, dcp_verify.c checks all of it.
 */
#ifndef BERTH_TOOLS_DCP_H
#define BERTH_TOOLS_DCP_H

#include <pthread.h>

#include "tools/common/files.h"
#include "tools/common/globals.h"
#include "tools/common/select.h"
#include "tools/common/set.h"

typedef struct dcp dcp;

/* ---- a directory as a set ---- */

/* Whether it is a folder with a .metadata in it. */
bool is_dcp_directory(const char *path);
int dcp_set_make(const char *path, selection *selected, file_set **made);

/* A range of a file, which holds one archive of torch.save. */
typedef struct dcp_piece {
    const dcp *in;
    const char *file; /* its name in the directory; NULL: `.metadata` does not say where it is */
    uint64_t offset, nbytes;
    char *name;   /* for messages, once it is opened */
    char *broken; /* why it cannot be read, with keeps_broken; else NULL */
} dcp_piece;

/* A box of a tensor. */
typedef struct dcp_chunk {
    dcp_piece piece;
    int32_t rank;
    const int64_t *starts, *lengths; /* rank items */
    uint64_t numel;                  /* 1 or more */
    /* Once it is opened: */
    pthread_mutex_t lock;
    bool is_open;
    uint64_t at;                  /* of its elements in the file, which are as in memory; or: */
    berth_checkpoint *checkpoint; /* they are read through it */
    const berth_tensor *tensor;
} dcp_chunk;

typedef struct dcp_entry {
    const char *name;
    bool is_bytes; /* any value, one piece */
    dcp_piece piece;
    berth_dtype dtype;
    int32_t rank;
    const int64_t *shape;
    uint64_t nbytes;   /* of all elements */
    dcp_chunk *chunks; /* by their starts; none is empty, and each element is in one of them */
    size_t n_chunks;
} dcp_entry;

/* For verdicts: what is wrong with a directory. Zeros at first. */
typedef struct dcp_notes {
    char *broken;          /* why `.metadata` cannot be read; NULL: it can */
    char *refused;         /* the first that is named and should not be, in words; or NULL */
    named_globals globals; /* all of them */
} dcp_notes;

struct dcp {
    const char *path;
    dcp_notes *notes; /* NULL: what is wrong is printed */
    int folder;       /* descriptor */
    void *pickle;     /* .metadata in an archive */
    size_t pickle_nbytes;
    char *pickle_name;
    berth_checkpoint *metadata; /* it owns all texts and shapes */
    const berth_value *planner; /* a dict from names to their paths; or NULL */
    dcp_entry *entries;         /* in the order of .metadata */
    size_t n_entries;
    json_t *names;   /* to the number of the entry */
    json_t *outline; /* dcp_outline.c */
    json_t *files;   /* to their sizes */
};

/* ---- dcp_metadata.c ---- */

/*
 * Returns 0, or an exit code after printing why. The caller frees *read with dcp_free. With
 * `notes`, which must live as long: a piece that is not in its file, a `.metadata` that cannot be
 * read (EXIT_NO) or that names what it should not (0) are noted, and not printed.
 */
int dcp_read(const char *path, dcp_notes *notes, dcp **read);
void dcp_notes_free(dcp_notes *notes);
void dcp_free(void *read);

/* ---- dcp_outline.c ---- */

/* Puts each entry at its path. Exit codes as above. */
int dcp_make_outline(dcp *d);

/* ---- dcp_table.c: the parts of .metadata, checked; exit codes as above ---- */

/* Fills entries and names from state_dict_metadata. */
int dcp_read_tensors(dcp *d, const berth_value *tensors);
/* Fills files and pieces from storage_data. */
int dcp_read_places(dcp *d, const berth_value *places);
/* Each element of each tensor must be in one chunk. */
int dcp_check_chunks(const dcp *d, dcp_entry *entry);
/* Prints "DIR/.metadata: ...", or notes it. Returns EXIT_NO. */
int dcp_refuse(const dcp *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The attributes of an object of a class of torch.distributed; NULL: it is none. */
const berth_value *dcp_object(const berth_value *value, const char *class_name);

/* ---- dcp_verify.c ---- */

/* `berth verify` of a directory: the file at hand. Returns the exit code. */
int dcp_verify(files *all, const common *options);
/* For `berth info` of a directory that cannot be opened: what is wrong, without reading tensors.
 * Returns whether that is only what it names. */
bool dcp_find_notes(const char *path, dcp_notes *notes);

/* ---- dcp_pieces.c ---- */

/* A piece as a source. NULL in it: no memory. */
berth_source dcp_piece_source(dcp_piece *piece);
/* Opens a piece as a checkpoint. Returns 0 or a status. */
int dcp_piece_open(dcp_piece *piece, berth_checkpoint **checkpoint, berth_error *error);
/* Checks all of it, as `berth verify` does a file. `params` and `verdict` may be NULL. */
int dcp_piece_verify(dcp_piece *piece, const berth_params *params, berth_verdict *verdict,
                     berth_error *error);
/* Opens the piece of a chunk, and checks that it is what `.metadata` says. */
int dcp_chunk_open(const dcp_entry *entry, dcp_chunk *chunk, berth_error *error);
void dcp_chunk_close(dcp_chunk *chunk);
void dcp_piece_free(dcp_piece *piece);
/* A set_read_function of an entry. */
int dcp_entry_read(void *entry, void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
/* Sets an error of the command's own. Returns the code. */
int error_set(berth_error *error, berth_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
