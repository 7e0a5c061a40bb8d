mod controller;
mod entries;
mod hostile;
mod layouts;
mod proving;
mod sequences;
mod support;
mod sweeps;
