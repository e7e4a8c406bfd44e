/* Assigns owners and exchanges data with its own functions over MPI (muonrt/distributed.h). The
 * weights equal those of muonrt's own exchanges. With an argument, MPI does not support threads. */
#include <muonrt/mpi_comm.h>
#include <muonrt/muonrt.h>
#include <stdio.h>
#include <string.h>

enum { PARAMS = 4, ROWS = 13, COLS = 9, STEPS = 3, MAX_RANKS = 64 };
static const char* const names[PARAMS] = {"a", "b", "c", "d"};
static const int64_t shape[2] = {ROWS, COLS};
static const muonrt_placement_t by_rows = {MUONRT_PLACEMENT_SHARD, 0, 0};

/* For each rank: the number of matrix elements that it holds, and the position of the first one. */
typedef struct rows {
  int size, rank, calls, counts[MAX_RANKS], begins[MAX_RANKS];
  muonrt_layout_t layout;
} rows_t;

static void check(muonrt_status_t status) {
  if (status == MUONRT_OK) return;
  fprintf(stderr, "%s: %s\n", muonrt_status_get_name(status), muonrt_get_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Round-robin, called once for each Muon parameter. */
static int assign(void* state, int64_t param, const muonrt_assign_info_t* info, int32_t* owner) {
  *owner = (int32_t)(param % info->world);
  return 0;
}

/* Elements are bf16, the transport dtype. `full` is NULL on ranks other than the owner, and
 * `stream` is NULL on the host. */
static int gather(void* state, int64_t param, int32_t owner, const void* local, void* full,
                  void* stream) {
  rows_t* r = state;
  ++r->calls;
  return MPI_Gatherv(local, r->counts[r->rank], MPI_UINT16_T, full, r->counts, r->begins,
                     MPI_UINT16_T, owner, MPI_COMM_WORLD);
}

static int redistribute(void* state, int64_t param, int32_t owner, const void* full, void* local,
                        void* stream) {
  const rows_t* r = state;
  return MPI_Scatterv(full, r->counts, r->begins, MPI_UINT16_T, local, r->counts[r->rank],
                      MPI_UINT16_T, owner, MPI_COMM_WORLD);
}

/* Computes this rank's elements of a matrix that depends on `seed`. */
static void fill(const rows_t* r, int seed, float* out) {
  for (int i = 0; i < r->counts[r->rank]; ++i)
    out[i] = (float)((r->begins[r->rank] + i + 1) * (i + 7 * seed + 3) % 101) / 50.0f - 1.0f;
}

/* Trains, from the same weights in every call. If `config` is null, muonrt exchanges the data. */
static void train(const rows_t* r, const muonrt_distributed_config_t* config,
                  float weights[PARAMS][ROWS * COLS]) {
  static float grads[PARAMS][ROWS * COLS];
  muonrt_comm_t* comm;
  muonrt_optimizer_t* optimizer;
  muonrt_param_t params[PARAMS];
  muonrt_group_t group;
  muonrt_tuning_options_t tuning;
  muonrt_optimizer_options_t options;
  muonrt_step_args_t args;
  muonrt_group_init_muon(&group);
  muonrt_tuning_options_init(&tuning);
  tuning.distributed = config;
  muonrt_optimizer_options_init(&options);
  options.tuning = &tuning;
  for (int i = 0; i < PARAMS; ++i) {
    fill(r, i, weights[i]);
    muonrt_param_init(&params[i]);
    params[i].name = names[i];
    params[i].ndim = 2;
    params[i].shape = shape;
    params[i].layout = &r->layout;
    params[i].data = weights[i];
    params[i].grad = grads[i];
  }
  check(muonrt_comm_create_mpi(&comm, MPI_COMM_WORLD, 60000));
  check(muonrt_optimizer_create(&optimizer, comm, &options, &group, 1, params, PARAMS));
  muonrt_step_args_init(&args);
  args.lr = 0.02;
  for (int step = 1; step <= STEPS; ++step) {
    for (int i = 0; i < PARAMS; ++i) fill(r, PARAMS * step + i, grads[i]);
    check(muonrt_optimizer_step(NULL, optimizer, &args));
  }
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
}

int main(int argc, char** argv) {
  static float built_in[PARAMS][ROWS * COLS], own[PARAMS][ROWS * COLS];
  static rows_t r;
  muonrt_distributed_config_t config;
  int provided, failed;
  MPI_Init_thread(&argc, &argv, argc > 1 ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_size(MPI_COMM_WORLD, &r.size);
  MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
  muonrt_layout_init(&r.layout); /* the layout is over all ranks */
  r.layout.placements = &by_rows;
  for (int rank = 0, at = 0; rank < r.size; at += r.counts[rank++]) {
    int64_t local[2];
    check(muonrt_layout_get_local_shape(local, &r.layout, r.size, 2, shape, rank));
    r.begins[rank] = at;
    r.counts[rank] = (int)(local[0] * local[1]);
  }
  train(&r, NULL, built_in);
  muonrt_distributed_config_init(&config);
  config.state = &r;
  config.assign = assign;
  config.gather = gather;
  config.redistribute = redistribute;
  train(&r, &config, own);
  failed = r.calls != STEPS * PARAMS || memcmp(built_in, own, sizeof own) != 0;
  if (r.rank == 0) puts(failed ? "different" : "bitwise identical");
  MPI_Finalize();
  return failed;
}
