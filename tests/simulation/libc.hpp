#pragma once

#include <dlfcn.h>

#include "simulation/scheduler.hpp"

namespace simulation {

/// Returns true on a fiber of a world. Such fibers use the simulation's functions instead of the
/// functions of the system.
inline bool inside() { return Scheduler::current() != nullptr; }

/// The function of the C library that a definition in this program replaces.
#define SIMULATION_REAL(name) (reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name)))

/// Call this at the beginning of every function of the system. It may kill the process or run
/// another fiber.
inline Scheduler& enter_system() {
  Scheduler& s = Scheduler::get();
  s.step();
  s.preempt();
  return s;
}

}  // namespace simulation
