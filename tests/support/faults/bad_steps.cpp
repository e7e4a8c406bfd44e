#include "support/faults/bad_input.hpp"

namespace bad_input {

std::vector<BadCase> step_cases() {
  using A = Arguments;
  return {
      {{"args is NULL"}, [](A& a) { a.args_given = nullptr; }},
      {{"step", "struct_size is 0"}, [](A& a) { a.args.struct_size = 0; }},
      {{"report", "struct_size is 2"}, [](A& a) { a.report.struct_size = 2; }},
      {{"lr is nan"}, [](A& a) { a.args.lr = kNan; }},
      {{"lr is -0.5"}, [](A& a) { a.args.lr = -0.5; }},
      {{"lr is inf"}, [](A& a) { a.args.lr = HUGE_VAL; }},
      {{"lr", "1e+39"}, [](A& a) { a.args.lr = 1e39; }},
      {{"n_group_lrs is 0", "2 groups"}, [](A& a) { a.args.group_lrs = a.rates; }},
      {{"n_group_lrs is 3"},
       [](A& a) {
         a.args.group_lrs = a.rates;
         a.args.n_group_lrs = 3;
       }},
      {{"n_group_lrs is 2 with group_lrs NULL"}, [](A& a) { a.args.n_group_lrs = 2; }},
      {{"lr of group 1 is -0.5"},
       [](A& a) {
         a.rates[1] = -0.5;
         a.args.group_lrs = a.rates;
         a.args.n_group_lrs = 2;
       }},
      {{"grad_scale_inv"}, [](A& a) { a.args.grad_scale_inv = 1e-50; }},
      {{"grad_scale_inv is 1e+300", "use 1"}, [](A& a) { a.args.grad_scale_inv = 1e300; }},
      {{"n_inactive_params"},
       [](A& a) {
         a.args.inactive_params = a.inactive;
         a.args.n_inactive_params = int64_t{1} << 58;
       }},
      {{"grad_scale_inv is 0"}, [](A& a) { a.args.grad_scale_inv = 0; }},
      {{"n_inactive_params is 2"}, [](A& a) { a.args.n_inactive_params = 2; }},
      {{"step: inactive_params: param index is 3"},
       [](A& a) {
         a.inactive[0] = 3;
         a.args.inactive_params = a.inactive;
         a.args.n_inactive_params = 1;
       }},
      {{"step: inactive_params: param index is -1"},
       [](A& a) {
         a.inactive[0] = -1;
         a.args.inactive_params = a.inactive;
         a.args.n_inactive_params = 1;
       }},
      {{"param 'wk'", "grad is NULL"},
       [](A& a) {
         a.rebind = true;
         a.grad_of_1 = nullptr;
       }},
      {{"stream is set", "on the host"}, [](A& a) { a.args.stream = a.inactive; }},
      {{"lr", "0.01", "0.02"}, [](A& a) { a.args.lr = 0.02; }, kMismatch},
      {{"lr of group 1", "0.01", "0.02"},
       [](A& a) {
         a.rates[1] = 0.02;
         a.args.group_lrs = a.rates;
         a.args.n_group_lrs = 2;
       },
       kMismatch},
      {{"param 'wq': active", "1", "0"},
       [](A& a) {
         a.inactive[0] = 0;
         a.args.inactive_params = a.inactive;
         a.args.n_inactive_params = 1;
       },
       kMismatch},
  };
}

}  // namespace bad_input
