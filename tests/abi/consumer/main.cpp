// The same from C++17, by the headers that C++ programs include.
#include <iostream>
#include <muonrt/muonrt.hpp>

int main() {
  // By the macro, and by the function's address.
  muonrt_step_t step, same;
  void (*const init)(muonrt_step_t*) = muonrt_step_init;
  muonrt_step_init(&step);
  init(&same);
  if (step.struct_size != sizeof step || same.struct_size != sizeof same) return 1;
  std::cout << "muonrt " << muonrt_version() << ", " << muonrt_status_name(MUONRT_OK) << '\n';
  return muonrt_status_name(MUONRT_OK) == std::string("MUONRT_OK") ? 0 : 1;
}
