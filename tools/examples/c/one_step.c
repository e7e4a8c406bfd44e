/* Runs one step on one rank. Then runs Newton-Schulz without an optimizer. */
#include <muonrt/muonrt.h>
#include <stdio.h>
#include <stdlib.h>

static void check(muonrt_status_t status) {
  if (status == MUONRT_OK) return;
  fprintf(stderr, "%s: %s\n", muonrt_status_get_name(status), muonrt_get_last_error());
  exit(1);
}

int main(void) {
  int64_t shape[2] = {4, 3};
  const int64_t ranks = 1;                                        /* the size of the communicator */
  const muonrt_placement_t rows = {MUONRT_PLACEMENT_SHARD, 0, 0}; /* dimension 0 is sharded */
  float shard[12], shard_gradient[12];
  muonrt_comm_t* comm;
  muonrt_mesh_t mesh;
  muonrt_layout_t layout;
  muonrt_group_t group;
  muonrt_param_t param;
  muonrt_optimizer_t* optimizer;
  muonrt_step_args_t args;
  muonrt_dltensor_t x = {0};
  muonrt_orthogonalizer_t* orthogonalizer;

  for (int i = 0; i < 12; ++i) {
    shard[i] = 0.1f * (float)i;
    shard_gradient[i] = i % 4 == 0 ? 1.0f : 0.0f;
  }
  muonrt_mesh_init(&mesh); /* each _init function sets the defaults */
  mesh.ndim = 1;
  mesh.shape = &ranks;

  /* The root README quotes the lines from here to the step; tools/check/readme compares them. */
  check(muonrt_comm_create_self(&comm)); /* or MPI, TCP, threads, your own functions */
  muonrt_layout_init(&layout);           /* how the tensor is distributed */
  layout.mesh = &mesh;                   /* the ranks */
  layout.placements = &rows;             /* dimension 0 is sharded */
  muonrt_group_init_muon(&group);
  muonrt_param_init(&param);
  param.name = "w1";
  param.ndim = 2;
  param.shape = shape; /* of the whole tensor */
  param.layout = &layout;
  param.data = shard;          /* this rank's shard; updated in place */
  param.grad = shard_gradient; /* read by the step */
  check(muonrt_optimizer_create(&optimizer, comm, NULL, &group, 1, &param, 1));

  muonrt_step_args_init(&args);
  args.lr = 3e-4;
  check(muonrt_optimizer_step(NULL, optimizer, &args)); /* collective */

  printf("w1[0] = %.5f\n", (double)shard[0]);

  /* include/muonrt/README.md quotes the lines from here to the call. */
  x.data = (char*)shard_gradient;
  x.shape = shape;
  x.ndim = 2;        /* or more: a batch of matrices */
  x.device_type = 1; /* the host */
  x.type_code = 2;   /* floating point */
  x.type_bits = 32;
  x.type_lanes = 1;
  check(muonrt_orthogonalizer_create(&orthogonalizer, NULL, NULL));
  check(muonrt_orthogonalize(&x, NULL, orthogonalizer, &x, NULL));

  printf("x[0] = %.5f\n", (double)shard_gradient[0]);
  muonrt_orthogonalizer_destroy(orthogonalizer);
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return 0;
}
