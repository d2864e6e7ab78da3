"""The paper's experiments: each table and figure a spec, one runner for all, figures and tables from what it wrote.

========================  =====================================================================================
:mod:`.spec`              ``specs/*.toml``: what an experiment is; it becomes cells, each one network trained once
:mod:`.extras`            what a cell may be given besides settings of training
:mod:`.shared`            what cells share: starts, learning rates, speeds
:mod:`.cell`              one cell, from its settings to a JSON file
:mod:`.runner`            all cells: in parallel processes, resumed where they were interrupted
:mod:`.results`           the JSON files read again
:mod:`.labels`            results in groups, and what their variables are called
:mod:`.figures`           the paper's figures, from the results alone
:mod:`.judging`           intervals over seeds, and the rule by which a claim holds
:mod:`.comparisons`       accuracies, and their differences seed by seed
:mod:`.claims`            what is claimed, in the paper and beyond it, and whether it holds
:mod:`.page`              one page of all this, with the text of ``notes.md`` (:mod:`.notes`)
:mod:`.summary`           the main comparisons with ConvNets, in one table and one figure
:mod:`.when`              the page "When to use a kernel network"
:mod:`.few_labels`        accuracy with n labels; :mod:`.learners` and :mod:`.baselines` are compared
:mod:`.gradient`          error of a gradient; :mod:`.variants`: slips; :mod:`.refitting`: classifiers refitted while training
========================  =====================================================================================

Paper: section 5 and appendices B and G. ``torchckn reproduce`` is the command.
"""
