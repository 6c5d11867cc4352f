/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A checkpoint of an MPI program: each rank has some rows of one matrix, and all have the bias.
 * They save one file, the one that a single process would have written, open it again, and read
 * other rows than they have written, as after a restart with other ranks.
 *
 *     mpicc mpi.c $(pkg-config --variable=sources berth-mpi) $(pkg-config --cflags --libs
 * berth-mpi) mpirun -n 4 ./a.out [FILE]
 */
#include <berth/more.h>
#include <berth_mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 1000, COLUMNS = 256 };

static int rank, n_ranks;

/* The error is the same in all ranks: one tells it, and all end. */
static void check(int status, const berth_error *error)
{
    if (status == 0)
        return;
    if (rank == 0)
        fprintf(stderr, "%s\n", error->message);
    MPI_Finalize();
    exit(1);
}

/* The rows of part number n of the matrix. */
static void set_rows(int n, int64_t starts[2], int64_t lengths[2])
{
    starts[0] = (int64_t)ROWS * n / n_ranks;
    lengths[0] = (int64_t)ROWS * (n + 1) / n_ranks - starts[0];
    starts[1] = 0;
    lengths[1] = COLUMNS;
}

static float element(int64_t i)
{
    return (float)i / 2;
}

static berth_value *make_tensor(berth_tree *tree, int32_t rank_of_tensor, const int64_t *shape)
{
    return berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                   .rank = rank_of_tensor,
                                                   .shape = shape,
                                                   .data = BERTH_ELSEWHERE});
}

/* What is to be saved: names, shapes, numbers. Only rank 0's counts. */
static berth_value *make_outline(berth_tree *tree)
{
    static const int64_t matrix[] = {ROWS, COLUMNS}, vector[] = {COLUMNS};
    berth_value *state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);

    berth_dict_set(state, "weight", make_tensor(tree, 2, matrix));
    berth_dict_set(state, "bias", make_tensor(tree, 1, vector));
    berth_dict_set(state, "epoch", berth_make_int(tree, 7));
    return state;
}

static void save(const char *path, float *rows, const float *bias)
{
    int64_t starts[2], lengths[2];
    berth_error error;

    set_rows(rank, starts, lengths);
    for (int64_t i = 0; i < lengths[0] * COLUMNS; i++)
        rows[i] = element(starts[0] * COLUMNS + i);
    const berth_slice slices[] = {
        berth_slice_of("weight", starts, lengths, rows),
        berth_mpi_share(MPI_COMM_WORLD, 0, "bias", COLUMNS * sizeof *bias, bias),
    };
    berth_tree *tree = berth_tree_new(NULL);
    int status = berth_mpi_save(MPI_COMM_WORLD, path, make_outline(tree), slices, 2, NULL, &error);
    berth_tree_free(tree);
    check(status, &error);
}

/* The number of wrong elements. */
static int load(const char *path, float *rows)
{
    int64_t starts[2], lengths[2];
    berth_mpi_file *file;
    berth_error error;
    int n_wrong = 0;

    check(berth_mpi_open(MPI_COMM_WORLD, path, NULL, &file, &error), &error);
    set_rows(n_ranks - 1 - rank, starts, lengths);
    const berth_tensor *weight = berth_find_tensor(file->checkpoint, "weight", &error);
    if (!weight ||
        berth_tensor_read_slice(file->checkpoint, weight, starts, lengths, rows, &error) < 0)
        fprintf(stderr, "rank %d cannot read its rows\n", rank);
    check(berth_mpi_agree(MPI_COMM_WORLD, &error), &error);
    berth_mpi_close(file);
    for (int64_t i = 0; i < lengths[0] * COLUMNS; i++)
        n_wrong += rows[i] < element(starts[0] * COLUMNS + i) ||
                   rows[i] > element(starts[0] * COLUMNS + i);
    return n_wrong;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "mpi.pt";
    static const float bias[COLUMNS] = {1, 2, 3};
    int n_wrong, n_wrong_of_all = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    float *rows = malloc((ROWS / (size_t)n_ranks + 1) * COLUMNS * sizeof *rows);
    if (!rows)
        MPI_Abort(MPI_COMM_WORLD, 1);
    save(path, rows, bias);
    n_wrong = load(path, rows);
    free(rows);
    MPI_Allreduce(&n_wrong, &n_wrong_of_all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s: %d rows of %d ranks, %d wrong elements\n", path, ROWS, n_ranks, n_wrong_of_all);
    MPI_Finalize();
    return n_wrong_of_all > 0;
}
