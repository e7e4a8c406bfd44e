#include <algorithm>
#include <cstring>

#include "muonrt/muonrt.h"

// What the headers' macros call: a struct of the size that the program's headers give it, which may
// be older or newer than this library.

namespace {

template <class T>
void fill(T* to, uint32_t size, const T& defaults) {
  if (!to) return;
  std::memset(to, 0, size);
  std::memcpy(to, &defaults, std::min<size_t>(size, sizeof defaults));
  std::memcpy(to, &size, std::min<size_t>(size, sizeof size));
}

template <class T>
void fill(T* to, uint32_t size, void (*init)(T*)) {
  T defaults;
  init(&defaults);
  fill(to, size, defaults);
}

}  // namespace

extern "C" {

void muonrt_group_init_sized(muonrt_group_t* group, int32_t role, uint32_t size) {
  muonrt_group_t defaults;
  (muonrt_group_init)(&defaults, role);
  fill(group, size, defaults);
}

void muonrt_allocator_init_sized(muonrt_allocator_t* allocator, uint32_t size) {
  fill(allocator, size, muonrt_allocator_init);
}

void muonrt_distributed_config_init_sized(muonrt_distributed_config_t* config, uint32_t size) {
  fill(config, size, muonrt_distributed_config_init);
}

void muonrt_health_init_sized(muonrt_health_t* health, uint32_t size) {
  fill(health, size, muonrt_health_init);
}

void muonrt_matrix_health_init_sized(muonrt_matrix_health_t* matrix, uint32_t size) {
  fill(matrix, size, muonrt_matrix_health_init);
}

void muonrt_mesh_init_sized(muonrt_mesh_t* mesh, uint32_t size) {
  fill(mesh, size, muonrt_mesh_init);
}

void muonrt_layout_init_sized(muonrt_layout_t* layout, uint32_t size) {
  fill(layout, size, muonrt_layout_init);
}

void muonrt_nccl_options_init_sized(muonrt_nccl_options_t* options, uint32_t size) {
  fill(options, size, muonrt_nccl_options_init);
}

void muonrt_part_init_sized(muonrt_part_t* part, uint32_t size) {
  fill(part, size, muonrt_part_init);
}

void muonrt_qk_clip_init_sized(muonrt_qk_clip_t* clip, uint32_t size) {
  fill(clip, size, muonrt_qk_clip_init);
}

void muonrt_param_init_sized(muonrt_param_t* param, uint32_t size) {
  fill(param, size, muonrt_param_init);
}

void muonrt_optimizer_options_init_sized(muonrt_optimizer_options_t* options, uint32_t size) {
  fill(options, size, muonrt_optimizer_options_init);
}

void muonrt_step_init_sized(muonrt_step_t* step, uint32_t size) {
  fill(step, size, muonrt_step_init);
}

void muonrt_report_init_sized(muonrt_report_t* report, uint32_t size) {
  fill(report, size, muonrt_report_init);
}

void muonrt_counters_init_sized(muonrt_counters_t* counters, uint32_t size) {
  fill(counters, size, muonrt_counters_init);
}

void muonrt_recovery_init_sized(muonrt_recovery_t* recovery, uint32_t size) {
  fill(recovery, size, muonrt_recovery_init);
}

void muonrt_tcp_init_sized(muonrt_tcp_t* tcp, uint32_t size) { fill(tcp, size, muonrt_tcp_init); }

void muonrt_folder_init_sized(muonrt_folder_t* folder, uint32_t size) {
  fill(folder, size, muonrt_folder_init);
}

void muonrt_routing_init_sized(muonrt_routing_t* routing, uint32_t size) {
  fill(routing, size, muonrt_routing_init);
}

void muonrt_state_view_init_sized(muonrt_state_view_t* view, uint32_t size) {
  fill(view, size, muonrt_state_view_init);
}

void muonrt_mesh_storage_init_sized(muonrt_mesh_storage_t* storage, uint32_t size) {
  fill(storage, size, muonrt_mesh_storage_init);
}

void muonrt_process_sizes_init_sized(muonrt_process_sizes_t* sizes, uint32_t size) {
  fill(sizes, size, muonrt_process_sizes_init);
}

void muonrt_process_groups_init_sized(muonrt_process_groups_t* groups, uint32_t size) {
  fill(groups, size, muonrt_process_groups_init);
}

void muonrt_transport_init_sized(muonrt_transport_t* transport, uint32_t size) {
  fill(transport, size, muonrt_transport_init);
}

}  // extern "C"
