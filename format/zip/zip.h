/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The zip format. Reading refuses what two readers could understand in two ways (Z1 to Z9). All
 * functions work on bytes in memory. Offsets in errors are positions in the file.
 */
#ifndef BTH_FORMAT_ZIP_ZIP_H
#define BTH_FORMAT_ZIP_ZIP_H

#include "berth.h"
#include "format/bytes.h"
#include "format/layout.h"

/* ---- numbers of the format (FORMAT.md 2, 3) ---- */

#define BTH_ZIP_LOCAL_SIGNATURE 0x04034b50u
#define BTH_ZIP_DESCRIPTOR_SIGNATURE 0x08074b50u
#define BTH_ZIP_CENTRAL_SIGNATURE 0x02014b50u
#define BTH_ZIP_END64_SIGNATURE 0x06064b50u
#define BTH_ZIP_LOCATOR_SIGNATURE 0x07064b50u
#define BTH_ZIP_END_SIGNATURE 0x06054b50u

#define BTH_ZIP_END64_RECORD_NBYTES 56
#define BTH_ZIP_LOCATOR_NBYTES 20
#define BTH_ZIP_END_RECORD_NBYTES 22

#define BTH_ZIP_FLAG_ENCRYPTED 0x0001u
#define BTH_ZIP_FLAG_DESCRIPTOR 0x0008u /* bit 3: sizes and CRC follow the data */
#define BTH_ZIP_FLAG_PATCH 0x0020u
#define BTH_ZIP_FLAG_STRONG 0x0040u
#define BTH_ZIP_FLAG_UTF8 0x0800u /* bit 11 */
#define BTH_ZIP_FLAG_MASKED 0x2000u

#define BTH_ZIP_DOS_FOLDER 0x10u
#define BTH_ZIP_UNIX_FOLDER 04u /* the highest four bits of a mode */
#define BTH_ZIP_UNIX_FILE 010u

#define BTH_ZIP_STORED 0
#define BTH_ZIP_DEFLATED 8
#define BTH_ZIP_LAST_VERSION 63 /* 6.3, of APPNOTE.TXT, the last that other readers know */

#define BTH_ZIP_EXTRA_ZIP64 0x0001u
#define BTH_ZIP_EXTRA_UNICODE_PATH 0x7075u
#define BTH_ZIP_EXTRA_PADDING 0x4246u /* "FB", PyTorch's own */

/* ---- reading ---- */

/* The end record's comment may have 65535 bytes: a tail of this size always suffices. */
#define BTH_ZIP_TAIL_NBYTES (65535 + 98)

typedef struct bth_zip_end {
    uint64_t directory_offset;
    uint64_t directory_nbytes;
    uint64_t n_entries;
} bth_zip_end;

typedef struct bth_zip_entry {
    const char *name;   /* full, NUL-terminated; owned by the directory */
    const char *record; /* its own name, without the top folder: inside name */
    uint32_t name_nbytes;
    uint16_t flags;
    uint16_t method; /* 0 stored, 8 deflated */
    uint32_t crc32;
    uint32_t name_hash; /* of record; private to zip_names.c */
    uint64_t compressed_nbytes;
    uint64_t nbytes;
    uint64_t header_offset;
    uint64_t next_offset; /* the next header in the file, or the directory */
    uint64_t data_offset; /* 0 until bth_zip_check_record_header */
    uint64_t end_offset;  /* after data and descriptor; 0 until bth_zip_check_record_descriptor */
} bth_zip_entry;

typedef struct bth_zip_directory {
    /* The records in the directory's order, then n_folders empty entries of folders ("x/"), whose
     * headers and ranges are checked, too. */
    bth_zip_entry *entries;
    size_t n_entries;
    size_t n_folders;
    size_t *by_offset;       /* all n_entries + n_folders of them in the file's order */
    char *names;             /* all names, NUL-terminated */
    const char *archive;     /* the common top folder, in a copy of its own inside names */
    uint32_t archive_nbytes; /* a record's own name starts at name + archive_nbytes + 1 */
    void *index;             /* by name; private to zip_names.c */
} bth_zip_directory;

/* Finds the end records (Z1, Z2, Z3). `tail`: the last tail_nbytes of a file of file_nbytes.
 * BERTH_E_TRUNCATED if they are fewer than min(file_nbytes, BTH_ZIP_TAIL_NBYTES): the result must
 * not depend on how much was read. */
int bth_zip_find_end(const uint8_t *tail, size_t tail_nbytes, uint64_t file_nbytes,
                     bth_zip_end *end, berth_error *error);

/* Parses the directory, which has end->directory_nbytes bytes (Z3, Z4, Z8, Z9, and the part of Z7
 * that data of entries do not overlap). Memory is in proportion to these bytes. */
int bth_zip_read_directory(const uint8_t *bytes, const bth_zip_end *end,
                           bth_zip_directory *directory, berth_error *error);
void bth_zip_free_directory(bth_zip_directory *directory);
/* Builds directory->index over the records; two of one name are refused (Z8). */
int bth_zip_index_names(bth_zip_directory *directory, berth_error *error);

/* Compares a computed CRC with the entry's (Z10): BERTH_E_CHECKSUM. A CRC of 0 of an entry that is
 * not empty was never computed: it is accepted, and *present is false. */
int bth_zip_compare_crc(const bth_zip_entry *entry, uint32_t computed, bool *present,
                        berth_error *error);

/* How a message begins, behind record and byte, that refuses what other tools unpack. */
#define BTH_ZIP_REFUSED_ENCRYPTION "encrypted (flags 0x"
#define BTH_ZIP_REFUSED_METHOD "compression method "

/* Refuses a name that two readers could understand in two ways (Z8), also before it is written. The
 * top folder, which all names share, need not be marked, and may be like "a:b", as PyTorch writes
 * it for a:b.pt. `at`: the byte of the file where its entry begins. */
int bth_zip_check_name(const uint8_t *name, size_t name_nbytes, bool marked_utf8,
                       bool with_top_folder, uint64_t at, berth_error *error);

/* The entry of a record by its own name ("data/0", no top folder), or NULL. */
bth_zip_entry *bth_zip_find(const bth_zip_directory *directory, const char *record,
                            size_t record_nbytes);
/* The same without regard to the case of ASCII letters, as PyTorch finds records. */
bth_zip_entry *bth_zip_find_any_case(const bth_zip_directory *directory, const char *record,
                                     size_t record_nbytes);

typedef struct bth_zip_extra {
    uint16_t id;
    uint16_t nbytes;
    const uint8_t *bytes;
} bth_zip_extra;

/* The header that has extra fields: its name, and what an error says of it. */
typedef struct bth_zip_header {
    const uint8_t *name;
    size_t name_nbytes;
    const char *record; /* NULL: not known yet */
    uint64_t at;        /* the byte of the file where it begins */
} bth_zip_header;

/* Reads the next extra field: 1; 0: there is none; or an error: it is malformed, or gives the entry
 * another name (Z4). */
int bth_zip_next_extra(bth_cursor *cursor, bth_zip_extra *extra, const bth_zip_header *header,
                       berth_error *error);

/* One local header, for reading without a directory. */
typedef struct bth_zip_local {
    const char *name; /* into bytes; not NUL-terminated */
    uint32_t name_nbytes;
    uint16_t flags;
    uint16_t method;
    uint32_t crc32;
    uint64_t compressed_nbytes; /* from zip64 extra if there; 0 with bit 3 */
    uint64_t nbytes;
    bool has_zip64; /* a zip64 extra field of any length */
    uint64_t data_offset;
    uint32_t field_compressed_nbytes; /* the header's own 32 bit fields, and the zip64 field's */
    uint32_t field_nbytes;            /* values: each copy of a size is compared (Z5) */
    uint32_t n_zip64;
    uint64_t zip64[3];
} bth_zip_local;

/* The size of a local header with name and extra fields, from its first BTH_ZIP_LOCAL_NBYTES. */
size_t bth_zip_local_nbytes(const uint8_t *bytes);

/* Parses a local header that begins at header_offset. BERTH_E_TRUNCATED: `nbytes` are too few;
 * 30 + 2 x 65535 always suffice. */
int bth_zip_parse_local_header(const uint8_t *bytes, size_t nbytes, uint64_t header_offset,
                               bth_zip_local *local, berth_error *error);
/* Whether its name is "<archive>/<record>". */
bool bth_zip_local_has_name(const bth_zip_local *local, const char *archive, const char *record);

/*
 * The record check compares one record's local header and descriptor with an entry: one of the
 * directory, or one that the caller fills from the layout or from the data (name, NULL: any;
 * record, for errors, may be NULL; flags, method, crc32, compressed_nbytes, nbytes, header_offset,
 * next_offset). A callback gets the bytes, so a file, a head in memory, a tile and a save's output
 * are checked by the same code. BERTH_E_ARCHIVE: the bytes contradict the entry or the format. All
 * other codes are the callback's.
 */
typedef struct bth_zip_input {
    /* Points *bytes at nbytes bytes of the file from `offset`, valid until the next call. `ahead`:
     * a hint that so many bytes from `offset` will soon be needed; often below nbytes. */
    int (*get)(void *context, uint64_t offset, uint64_t nbytes, uint64_t ahead,
               const uint8_t **bytes, berth_error *error);
    void *context;
} bth_zip_input;

/* A part of the file in memory; anything outside it is BERTH_E_TRUNCATED. */
typedef struct bth_zip_part {
    const uint8_t *bytes;
    uint64_t offset; /* of bytes[0] in the file */
    uint64_t nbytes;
} bth_zip_part;
/* `part` must live as long as the input. */
bth_zip_input bth_zip_input_over(bth_zip_part *part);

/* Fetches and parses a local header; `ahead` goes to the callback. */
int bth_zip_fetch_and_parse_local(const bth_zip_input *input, uint64_t header_offset,
                                  uint64_t ahead, bth_zip_local *local, berth_error *error);

/* Checks the local header (Z5), and the end of the data (Z7). Sets entry->data_offset. */
int bth_zip_check_record_header(const bth_zip_input *input, uint64_t ahead, bth_zip_entry *entry,
                                berth_error *error);

/* Checks the descriptor (Z6). It fills all bytes up to entry->next_offset, so it is never searched
 * for. Needs entry->data_offset; sets entry->end_offset. Without bit 3 it reads nothing. If there
 * is no signature it also reads the 4 bytes before the descriptor. */
int bth_zip_check_record_descriptor(const bth_zip_input *input, uint64_t ahead,
                                    bth_zip_entry *entry, berth_error *error);
/* The end of an entry's data and descriptor, from its data_offset and next_offset. Fails if there
 * is no room for a descriptor (Z6) or the data reach into the next entry (Z7). */
int bth_zip_find_entry_end(const bth_zip_entry *entry, uint64_t *end_offset, berth_error *error);
/* Whether the entry has a descriptor without a signature (Z6). Needs entry->data_offset. */
bool bth_zip_descriptor_is_unsigned(const bth_zip_entry *entry);

/* Checks local header and descriptor. */
int bth_zip_check_record(const bth_zip_input *input, uint64_t ahead, bth_zip_entry *entry,
                         berth_error *error);

/* Ranges (Z7) of all entries from directory->by_offset[first] on, folders too, whose data_offset is
 * known: disjoint, without gap, the first one at `at`, the last ending at the directory. */
int bth_zip_check_no_gaps(const bth_zip_directory *directory, const bth_zip_end *end, size_t first,
                          uint64_t at, berth_error *error);

/* ---- deflated records ---- */

/* Z12: no deflated record unfolds to more than this many times its bytes: 258 bytes from 2 bits. */
#define BTH_DEFLATE_MAX_RATIO 1032

/* Caps of the small records: data.pkl of 10,000 tensors has 1 MB and deflates 4 to 1. */
#define BTH_INFLATE_MAX_NBYTES (256u << 20)
#define BTH_INFLATE_MAX_RATIO 64
#define BTH_INFLATE_FREE_NBYTES 65536 /* up to this size the ratio is not checked */

/* Refuses an entry that exceeds the caps; call it before memory for it is allocated. */
int bth_inflate_check_limits(const bth_zip_entry *entry, berth_error *error);

/* Where the bytes of a deflated record go. */
typedef struct bth_inflate_output {
    uint8_t *memory; /* nbytes of them, from byte `from` on; */
    uint64_t nbytes;
    uint64_t from;
    uint8_t *scratch; /* all others, piece by piece: they are only summed */
    size_t scratch_nbytes;
    /* Called after each piece; an error ends it. May be NULL. */
    int (*advance)(void *context, uint64_t nbytes, berth_error *error);
    void *context;
    uint32_t crc32; /* result: of all bytes */
} bth_inflate_output;

/* Room for one byte more than the entry has: then a longer record is noticed. */
#define BTH_INFLATE_MIN_SCRATCH_NBYTES 16

/* Inflates a record, whose local header was checked, piece by piece: input is fetched in pieces of
 * 64 KiB. Exactly its bytes must become exactly entry->nbytes. Checks neither caps nor the CRC. */
int bth_inflate_in_pieces(const bth_zip_entry *entry, const bth_zip_input *input,
                          bth_inflate_output *output, berth_error *error);

/* Inflates entry->compressed_nbytes bytes to exactly entry->nbytes. Checks the caps, not the CRC.
 */
int bth_inflate(const bth_zip_entry *entry, const uint8_t *in, uint8_t *out, berth_error *error);

/* ---- the small records of a checkpoint ---- */

/* The records before the storages, in their order (FORMAT.md 1). */
enum { BTH_DATA_PKL, BTH_FORMAT_VERSION, BTH_STORAGE_ALIGNMENT, BTH_BYTEORDER, BTH_N_SMALL };
extern const char *const bth_small_names[BTH_N_SMALL];

/* `byteorder`: "little" or "big", nothing else. */
int bth_record_parse_byteorder(const uint8_t *bytes, size_t nbytes, uint64_t offset, bool *little,
                               berth_error *error);
/* `.storage_alignment`: decimal, 1 to BTH_MAX_ALIGNMENT_READ. White space may surround it, a plus
 * sign and zeros precede it; so they may in the next two. */
int bth_record_parse_alignment(const uint8_t *bytes, size_t nbytes, uint64_t offset,
                               uint32_t *alignment, berth_error *error);
/* `.format_version`: decimal, 0 to 999999999. */
int bth_record_parse_format_version(const uint8_t *bytes, size_t nbytes, uint64_t offset,
                                    uint32_t *version, berth_error *error);
/* Z11: a version record, "3\n" as PyTorch writes it: decimal, 1 to BTH_MAX_VERSION_READ. */
int bth_record_check_version(const char *record, const uint8_t *bytes, size_t nbytes,
                             uint64_t offset, berth_error *error);

/* ---- writing a record's headers, as PyTorch writes them (FORMAT.md 2, 3) ---- */

/* Local header, name, extra fields: writes data_offset - header_offset bytes. */
void bth_zip_write_local(const bth_layout_entry *entry, const char *name, uint8_t *out);
/* Data descriptor: writes entry->descriptor_nbytes bytes. */
void bth_zip_write_descriptor(const bth_layout_entry *entry, uint32_t crc32, uint8_t *out);
/* Central entry: writes bth_layout_central_entry_nbytes(entry) bytes. */
void bth_zip_write_central(const bth_layout_entry *entry, const char *name, uint32_t crc32,
                           uint8_t *out);
/* ZIP64 end record, locator, end record: writes BTH_ZIP_END_NBYTES bytes. */
void bth_zip_write_end(uint64_t n_entries, uint64_t directory_offset, uint64_t directory_nbytes,
                       uint8_t *out);

#endif
