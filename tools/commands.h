/* commands.h - entry points of the sub-commands. argv[0] is the name of the sub-command; the return value is
 * the exit status. */
#ifndef WEFT_TOOLS_COMMANDS_H
#define WEFT_TOOLS_COMMANDS_H

int weft_run_main(int argc, char **argv);
int weft_status_main(int argc, char **argv);
int weft_drain_main(int argc, char **argv);
int weft_rebalance_main(int argc, char **argv);
int weft_top_main(int argc, char **argv);
int weft_support_main(int argc, char **argv);
int weft_doctor_main(int argc, char **argv);
int weft_snapshot_main(int argc, char **argv);
int weft_trace_main(int argc, char **argv);
int weft_inspect_main(int argc, char **argv);
int weft_sim_main(int argc, char **argv);

#endif
