/* A trainer in C99: fits a two-layer network to a function of 16 numbers, with its matrices sharded
 * over ranks. Each rank holds a shard of each matrix, gathers the whole matrices, and calls
 * muonrt_optimizer_step(). Run it as one process or under mpirun. The loss must fall below a
 * twentieth of its first value. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "muonrt/muonrt.h"
#ifdef USE_MPI
#include "muonrt/mpi_comm.h"
#endif

enum { IN = 16, HIDDEN = 48, SAMPLES = 256, STEPS = 400, MATRICES = 2, MAX_RANKS = 64 };

/* Ends the program with the error message of muonrt if the call has failed. */
static void check(muonrt_status_t status, const char* what) {
  if (status == MUONRT_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, muonrt_status_get_name(status), muonrt_get_last_error());
  exit(1);
}

/* A pseudorandom number in [-1, 1), the same on every rank. */
static float noise(uint32_t i) {
  i = (i ^ 61u) ^ (i >> 16);
  i *= 0x9e3779b1u;
  i ^= i >> 15;
  i *= 0x85ebca6bu;
  i ^= i >> 13;
  return (float)(i >> 8) / 8388608.0f - 1.0f;
}

/* Mean squared error of w2 tanh(w1 x) over all samples; gradients of the full matrices. */
static double forward_backward(float* const full[MATRICES], float* const grad[MATRICES]) {
  double loss = 0.0;
  int s, i, j;
  memset(grad[0], 0, sizeof(float) * HIDDEN * IN);
  memset(grad[1], 0, sizeof(float) * HIDDEN);
  for (s = 0; s < SAMPLES; ++s) {
    float x[IN], h[HIDDEN], y = 0.0f, target = 0.0f, error;
    for (i = 0; i < IN; ++i) x[i] = noise((uint32_t)(s * IN + i));
    for (i = 0; i < IN; ++i) target += x[i] * x[(i + 1) % IN];
    for (j = 0; j < HIDDEN; ++j) {
      float a = 0.0f;
      for (i = 0; i < IN; ++i) a += full[0][j * IN + i] * x[i];
      h[j] = tanhf(a);
      y += full[1][j] * h[j];
    }
    error = y - target;
    loss += (double)(error * error) / (double)SAMPLES;
    for (j = 0; j < HIDDEN; ++j) {
      const float back = 2.0f * error / (float)SAMPLES;
      const float inner = back * full[1][j] * (1.0f - h[j] * h[j]);
      grad[1][j] += back * h[j];
      for (i = 0; i < IN; ++i) grad[0][j * IN + i] += inner * x[i];
    }
  }
  return loss;
}

/* Gathers the rows of all ranks into `full`, in rank order. Shards may have different sizes or be
 * empty. */
static void gather(muonrt_comm_t* comm, int32_t ranks, const muonrt_layout_t* layout,
                   const int64_t* shape, const float* shard, int64_t mine, float* full) {
  muonrt_send_t sends[MAX_RANKS];
  muonrt_receive_t receives[MAX_RANKS];
  int64_t n_sends = 0, n_receives = 0;
  int32_t r;
  for (r = 0; r < ranks; ++r) {
    int64_t local[2];
    check(muonrt_layout_get_local_shape(local, layout, ranks, 2, shape, r), "layout");
    if (mine > 0) {
      const muonrt_send_t m = {r, 0, shard, mine * (int64_t)sizeof(float)};
      sends[n_sends++] = m;
    }
    if (local[0] * local[1] > 0) {
      const muonrt_receive_t m = {r, 0, full, local[0] * local[1] * (int64_t)sizeof(float)};
      receives[n_receives++] = m;
      full += local[0] * local[1];
    }
  }
  check(muonrt_comm_exchange(comm, sends, n_sends, receives, n_receives), "gather");
}

static int train(muonrt_comm_t* comm) {
  static const int64_t shapes[MATRICES][2] = {{HIDDEN, IN}, {1, HIDDEN}};
  static const char* const names[MATRICES] = {"w1", "w2"};
  const muonrt_placement_t rows = {MUONRT_PLACEMENT_SHARD, 0, 0};
  float *full[MATRICES], *full_grad[MATRICES], *shard[MATRICES], *grad[MATRICES];
  int64_t numel[MATRICES], first[MATRICES], mesh_shape;
  double loss = 0.0, begin = 0.0;
  int32_t rank, ranks, m, step;
  int64_t i;
  muonrt_mesh_t mesh;
  muonrt_layout_t layout;
  muonrt_group_t groups[2];
  muonrt_param_t params[MATRICES];
  muonrt_optimizer_t* optimizer;

  check(muonrt_comm_get_rank(&rank, comm), "rank");
  check(muonrt_comm_get_size(&ranks, comm), "size");
  mesh_shape = ranks;
  muonrt_mesh_init(&mesh);
  mesh.ndim = 1;
  mesh.shape = &mesh_shape;
  muonrt_layout_init(&layout);
  layout.mesh = &mesh;
  layout.placements = &rows;
  muonrt_group_init_muon(&groups[0]);
  groups[0].weight_decay = 0.0;
  muonrt_group_init_adamw(&groups[1]);
  groups[1].weight_decay = 0.0;

  for (m = 0; m < MATRICES; ++m) {
    const int64_t all = shapes[m][0] * shapes[m][1];
    int64_t local[2], n_runs;
    muonrt_run_t run = {0, 0};
    check(muonrt_layout_get_local_shape(local, &layout, ranks, 2, shapes[m], rank), "layout");
    check(muonrt_layout_get_runs(&run, 1, &n_runs, &layout, ranks, 2, shapes[m], rank, 0),
          "layout");
    numel[m] = local[0] * local[1];
    first[m] = run.begin * shapes[m][1];
    full[m] = malloc((size_t)all * sizeof(float));
    full_grad[m] = malloc((size_t)all * sizeof(float));
    shard[m] = malloc((size_t)(numel[m] + 1) * sizeof(float));
    grad[m] = malloc((size_t)(numel[m] + 1) * sizeof(float));
    for (i = 0; i < numel[m]; ++i) shard[m][i] = 0.3f * noise((uint32_t)(7777 * m + first[m] + i));
    muonrt_param_init(&params[m]);
    params[m].name = names[m];
    params[m].group = m; /* the matrix by Muon, the output row by AdamW */
    params[m].ndim = 2;
    params[m].shape = shapes[m];
    params[m].layout = &layout;
    params[m].data = shard[m];
    params[m].grad = grad[m];
  }
  check(muonrt_optimizer_create(&optimizer, comm, NULL, groups, 2, params, MATRICES), "create");

  for (step = 0; step < STEPS; ++step) {
    muonrt_step_args_t args;
    for (m = 0; m < MATRICES; ++m) {
      gather(comm, ranks, &layout, shapes[m], shard[m], numel[m], full[m]);
    }
    loss = forward_backward(full, full_grad); /* every rank computes all samples, so no reduction */
    if (step == 0) begin = loss;
    for (m = 0; m < MATRICES; ++m) {
      memcpy(grad[m], full_grad[m] + first[m], (size_t)numel[m] * sizeof(float));
    }
    muonrt_step_args_init(&args);
    args.lr = 0.01 * (1.0 - (double)step / (double)STEPS);
    check(muonrt_optimizer_step(NULL, optimizer, &args), "step");
  }
  if (rank == 0) printf("%d ranks: loss %.4f -> %.4f\n", (int)ranks, begin, loss);
  muonrt_optimizer_destroy(optimizer);
  for (m = 0; m < MATRICES; ++m) {
    free(full[m]);
    free(full_grad[m]);
    free(shard[m]);
    free(grad[m]);
  }
  return loss < begin / 20.0 ? 0 : 1;
}

int main(int argc, char** argv) {
  muonrt_comm_t* comm;
  int failed;
#ifdef USE_MPI
  MPI_Init(&argc, &argv);
  check(muonrt_comm_create_mpi(&comm, MPI_COMM_WORLD, 60000), "communicator");
#else
  (void)argc;
  (void)argv;
  check(muonrt_comm_create_self(&comm), "communicator");
#endif
  failed = train(comm);
  muonrt_comm_destroy(comm);
#ifdef USE_MPI
  MPI_Finalize();
#endif
  return failed;
}
